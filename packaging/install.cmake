# What `cmake --install` puts where. packaging/build-deb makes a Debian package of it, with the component `system`.
#
# Everything that runs is in one folder of its own, lib/carillon: the program, the OpenVINO module beside it, and the
# libraries that Debian does not have (or not in these versions), which the programs' RPATH finds there. bin/carillon
# is a link to it.

set(private lib/carillon)
set(documents share/doc/carillon)
set(libraries ${CMAKE_SOURCE_DIR}/.venv/lib)
file(GLOB site ${libraries}/python3*/site-packages)

# oneDNN, TBB and the runtime of the compiler that oneDNN was built with, by the names that programs load them by.
foreach(name libdnnl.so.3 libtbb.so.12 libtbbmalloc.so.2 libimf.so libintlc.so.5)
  file(REAL_PATH ${libraries}/${name} file)
  install(FILES ${file} DESTINATION ${private} RENAME ${name} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()

set_target_properties(carillon PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS carillon RUNTIME DESTINATION ${private})
install(CODE "
  file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin\")
  file(CREATE_LINK ../${private}/carillon \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin/carillon\" SYMBOLIC)")

set(packages onednn_cpu_tbb tbb intel_cmplr_lib_rt)
if(TARGET carillon_openvino)
  list(APPEND packages openvino)
  set_target_properties(carillon_openvino PROPERTIES INSTALL_RPATH "$ORIGIN/openvino:$ORIGIN")
  install(TARGETS carillon_openvino LIBRARY DESTINATION ${private})
  # The process that each model of it has.
  set_target_properties(carillon_openvino_host PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS carillon_openvino_host RUNTIME DESTINATION ${private})
  # The runtime, what reads ONNX and its own format, and the CPU; the rest is for other machines and frameworks. Its
  # TBB is ours: the program has loaded that by then.
  file(GLOB openvino_libraries
    ${carillon_openvino_home}/libs/libopenvino.so.*
    ${carillon_openvino_home}/libs/libopenvino_intel_cpu_plugin.so
    ${carillon_openvino_home}/libs/libopenvino_onnx_frontend.so.*
    ${carillon_openvino_home}/libs/libopenvino_ir_frontend.so.*)
  install(FILES ${openvino_libraries} DESTINATION ${private}/openvino)
endif()

# What 'carillon run' puts before a script's own modules.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/carillon DESTINATION ${private}/python PATTERN __pycache__ EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/systemd/carillon-share.service DESTINATION lib/systemd/user
  COMPONENT system EXCLUDE_FROM_ALL)

install(FILES ${CMAKE_SOURCE_DIR}/packaging/man/carillon.1 DESTINATION share/man/man1)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/debian/copyright DESTINATION ${documents})
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${documents}/licenses/carillon)
# The licences of what is not Debian's, as those who made it give them.
foreach(package ${packages})
  file(GLOB_RECURSE texts ${site}/${package}-*.dist-info/*LICENSE* ${site}/${package}-*.dist-info/*third-party*)
  install(FILES ${texts} DESTINATION ${documents}/licenses/${package})
endforeach()

# For a system, and not a folder of one's own: --component system.
install(FILES ${CMAKE_SOURCE_DIR}/packaging/systemd/carillon.service DESTINATION /lib/systemd/system
  COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/systemd/carillon.sysusers DESTINATION /usr/lib/sysusers.d
  RENAME carillon.conf COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/systemd/carillon.env DESTINATION /etc/carillon
  PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/logrotate/carillon DESTINATION /etc/logrotate.d
  COMPONENT system EXCLUDE_FROM_ALL)
install(DIRECTORY DESTINATION /var/lib/carillon/models COMPONENT system EXCLUDE_FROM_ALL)
