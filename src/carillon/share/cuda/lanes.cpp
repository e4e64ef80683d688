#include "carillon/share/cuda/lanes.h"

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/share/messages.h"

namespace carillon::share::cuda {
namespace {

// What all lanes of a device have in common; it goes with the last of them.
struct Gpu {
  Driver driver;
  DeviceNumber device = 0;
  Properties properties;
  std::string name;
  Uuid uuid;
  Bytes piece;
  Context context = nullptr;

  ~Gpu() {
    if (context != nullptr) driver.context_release(device);
  }
  std::unexpected<Error> no(ErrorCode code, const char* what, Status status) const {
    return fail(code, name + ": " + what + ": " + name_of(driver, status).text);
  }
  // Physical memory needs no context by the driver's documentation. Where a driver thinks otherwise it gets
  // one: that costs the device some hundred MiB, so it is not made before.
  Status create(Handle& out) {
    Status status = driver.create(&out, piece.count, &properties, 0);
    if (status != invalid_context) return status;
    if (context == nullptr)
      if (const Status none = driver.context_retain(&context, device); none != done) return none;
    if (const Status none = driver.context_push(context); none != done) return none;
    status = driver.create(&out, piece.count, &properties, 0);
    Context popped = nullptr;
    driver.context_pop(&popped);
    return status;
  }
};

class CudaLane final : public LaneMemory {
 public:
  explicit CudaLane(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~CudaLane() override { give_back(); }

  Result<> resize(Bytes size) override {
    const std::size_t before = handles_.size();
    const std::size_t wanted =
        static_cast<std::size_t>(round_up(size.count, gpu_->piece.count) / gpu_->piece.count);
    while (handles_.size() < wanted) {
      Handle made = 0;
      if (const Status status = gpu_->create(made); status != done) {
        shrink(before);
        return gpu_->no(ErrorCode::resource_exhausted, "no memory for a lane", status);
      }
      handles_.push_back(made);
      numbers_.push_back(++next_number_);
    }
    shrink(wanted);
    return {};
  }
  // Jobs that have imported it keep it alive until they unmap it.
  void give_back() override { shrink(0); }
  std::span<const std::uint64_t> pieces() const override { return numbers_; }
  Result<Descriptor> piece(std::size_t place) const override {
    int descriptor = -1;
    if (const Status status = gpu_->driver.export_handle(&descriptor, handles_[place], file_descriptor, 0);
        status != done)
      return gpu_->no(ErrorCode::resource_exhausted, "no descriptor for a piece of a lane", status);
    return Descriptor(descriptor);
  }

 private:
  void shrink(std::size_t to) {
    for (; handles_.size() > to; handles_.pop_back()) gpu_->driver.release(handles_.back());
    if (numbers_.size() > to) numbers_.resize(to);
  }

  const std::shared_ptr<Gpu> gpu_;
  std::vector<Handle> handles_;
  std::vector<std::uint64_t> numbers_;
  std::uint64_t next_number_ = 0;
};

class CudaLanes final : public LaneSource {
 public:
  explicit CudaLanes(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  Result<std::unique_ptr<LaneMemory>> make(std::uint32_t) override {
    return std::make_unique<CudaLane>(gpu_);
  }
  std::string_view name() const override { return gpu_->name; }
  std::string_view in_maps() const override { return "/dev/nvidia"; }  // of a process that has a context
  std::optional<DeviceIs> device() const override {
    auto packet = packet_of<DeviceIs>(Kind::device);
    packet.memory = memory_of_cuda;
    packet.piece = gpu_->piece.count;
    static_assert(sizeof packet.uuid == sizeof gpu_->uuid.bytes);
    std::memcpy(packet.uuid, gpu_->uuid.bytes, sizeof packet.uuid);
    return packet;
  }

 private:
  const std::shared_ptr<Gpu> gpu_;
};

}  // namespace

Result<std::shared_ptr<LaneSource>> open_lanes(int ordinal, Bytes piece,
                                               const std::optional<Driver>& driver) {
  auto gpu = std::make_shared<Gpu>();
  gpu->name = "cuda:" + std::to_string(ordinal);
  if (driver) {
    gpu->driver = *driver;
    if (const Status status = gpu->driver.init(0); status != done)
      return gpu->no(ErrorCode::unavailable, "the CUDA driver does not start", status);
  } else if (std::array<char, 256> why{}; !open_driver(gpu->driver, why.data(), why.size())) {
    return fail(ErrorCode::unavailable, gpu->name + ": " + why.data());
  }
  const Driver& cuda = gpu->driver;
  int count = 0;
  if (const Status status = cuda.device_count(&count); status != done)
    return gpu->no(ErrorCode::unavailable, "devices cannot be counted", status);
  if (ordinal < 0 || ordinal >= count)
    return fail(ErrorCode::unavailable, "there is no " + gpu->name + ": the CUDA driver sees " +
                                            std::to_string(count) + (count == 1 ? " device" : " devices") +
                                            " (CUDA_VISIBLE_DEVICES says which)");
  if (const Status status = cuda.device_get(&gpu->device, ordinal); status != done)
    return gpu->no(ErrorCode::unavailable, "no device", status);
  gpu->properties.location.id = gpu->device;
  for (const auto& [attribute, what] : {std::pair(has_virtual_memory, "map physical memory"),
                                        std::pair(has_descriptors, "share it by descriptors")}) {
    int can = 0;
    if (const Status status = cuda.device_attribute(&can, attribute, gpu->device); status != done)
      return gpu->no(ErrorCode::unavailable, "what it can do is not known", status);
    if (can == 0)
      return fail(ErrorCode::unsupported,
                  gpu->name + " cannot " + what + ", which lanes need (Linux, Pascal and later)");
  }
  if (const Status status = cuda.device_uuid(&gpu->uuid, gpu->device); status != done)
    return gpu->no(ErrorCode::unavailable, "which device it is, is not known", status);
  std::size_t granularity = 0;
  if (const Status status = cuda.granularity(&granularity, &gpu->properties, smallest_granularity);
      status != done)
    return gpu->no(ErrorCode::unavailable, "its memory's granularity is not known", status);
  if (granularity == 0) return fail(ErrorCode::internal, gpu->name + ": its memory's granularity is 0");
  gpu->piece = Bytes{round_up(std::max<std::uint64_t>(piece.count, 1), granularity)};
  return std::make_shared<CudaLanes>(std::move(gpu));
}

}  // namespace carillon::share::cuda
