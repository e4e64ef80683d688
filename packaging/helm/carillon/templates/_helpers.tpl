{{- define "carillon.labels" -}}
app.kubernetes.io/name: carillon-cluster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "carillon.metadata" -}}
{{- include "carillon.labels" . }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Of one role: (list $ "worker"). */}}
{{- define "carillon.selector" -}}
{{- include "carillon.labels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* The pod of a role, down to its containers. */}}
{{- define "carillon.pod" -}}
{{- $top := index . 0 }}{{ $role := index . 1 }}{{ $values := index $top.Values $role -}}
serviceAccountName: {{ $top.Release.Name }}-cluster
automountServiceAccountToken: true
{{- with $top.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "carillon.selector" . | nindent 8 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "carillon.container" -}}
{{- $top := index . 0 }}{{ $role := index . 1 }}{{ $values := index $top.Values $role -}}
name: carillon
image: {{ $top.Values.image.repository }}:{{ $top.Values.image.tag }}
{{- with $top.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: CARILLON_CLUSTER
    value: kubernetes://$(POD_NAMESPACE)/{{ $top.Release.Name }}
  {{- if and $top.Values.tls.enabled (ne $role "frontend") }}
  {{- /* Only schedulers and admins may order a drain. */}}
  {{- $folder := ternary "admin" "member" (eq $role "worker") }}
  - name: CARILLON_CLUSTER_OPTIONS
    value: --cluster-cert /etc/carillon/{{ $folder }}/tls.crt --cluster-cert-key /etc/carillon/{{ $folder }}/tls.key --cluster-ca /etc/carillon/{{ $folder }}/ca.crt
  {{- end }}
{{- end }}

{{- /* The options that all members have. */}}
{{- define "carillon.args" -}}
{{- $top := index . 0 -}}
- --cluster=$(CARILLON_CLUSTER)
- --id=$(POD_NAME)
- --listen=$(POD_IP):7000
- --cluster-key=/etc/carillon/cluster/key
{{- if $top.Values.tls.enabled }}
- --cluster-cert=/etc/carillon/member/tls.crt
- --cluster-cert-key=/etc/carillon/member/tls.key
- --cluster-ca=/etc/carillon/member/ca.crt
{{- end }}
{{- range (index $top.Values (index . 1)).args }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "carillon.ports" -}}
- name: beats
  containerPort: 7000
  protocol: UDP
{{- end }}

{{- define "carillon.preStop" -}}
preStop:
  exec:
    command:
      - /bin/sh
      - -c
      - carillon cluster drain --cluster "$CARILLON_CLUSTER" $CARILLON_CLUSTER_OPTIONS "$POD_NAME"
{{- end }}

{{- define "carillon.mounts" -}}
{{- $top := index . 0 -}}
- name: cluster-key
  mountPath: /etc/carillon/cluster
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if $top.Values.tls.enabled }}
- name: member
  mountPath: /etc/carillon/member
  readOnly: true
{{- end }}
{{- end }}

{{- define "carillon.volumes" -}}
{{- $top := index . 0 -}}
- name: cluster-key
  secret:
    secretName: {{ $top.Values.clusterKeySecret | default (printf "%s-cluster-key" $top.Release.Name) }}
    defaultMode: 0440
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- if $top.Values.tls.enabled }}
- name: member
  secret:
    secretName: {{ $top.Release.Name }}-{{ index . 1 }}-member
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "carillon.contained" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- end }}
