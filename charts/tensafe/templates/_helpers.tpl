{{/* Name of the program: `tensafe-operator`. */}}
{{- define "tensafe.name" -}}
{{- .Values.nameOverride | default "tensafe-operator" -}}
{{- end -}}

{{/* Name of the operator's objects: `tensafe-operator` in a release called tensafe. Names of Services have at most 63
characters, and suffixes of up to nine follow. */}}
{{- define "tensafe.operator" -}}
{{- $name := include "tensafe.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else if and (not .Values.nameOverride) (contains "tensafe" .Release.Name) -}}
{{- printf "%s-operator" .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of the operator's cluster-scoped objects, unique among releases in different namespaces. At most 118
characters, of the 253 that Kubernetes allows. */}}
{{- define "tensafe.clusterName" -}}
{{- printf "%s-%s" (include "tensafe.operator" .) .Release.Namespace -}}
{{- end -}}

{{- define "tensafe.selector" -}}
app.kubernetes.io/name: {{ include "tensafe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tensafe.labels" -}}
{{ include "tensafe.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tensafe
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* Full name of an image, from (list image appVersion). */}}
{{- define "tensafe.image" -}}
{{- $image := index . 0 -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end -}}

{{/* The durations of the leader election. The operator checks the same, but only in its pod. */}}
{{- define "tensafe.leaseDurations" -}}
{{- $lease := int .Values.leaderElection.leaseDurationSeconds -}}
{{- $renew := int .Values.leaderElection.renewDeadlineSeconds -}}
{{- $retry := int .Values.leaderElection.retryPeriodSeconds -}}
{{- if ge $renew $lease -}}
{{- $fix := printf "set it below leaseDurationSeconds, which is %d" $lease -}}
{{- printf "leaderElection.renewDeadlineSeconds is %d: %s" $renew $fix | fail -}}
{{- else if le $renew (mul 3 $retry | int) -}}
{{- $fix := printf "set it above three times retryPeriodSeconds, which is %d" $retry -}}
{{- printf "leaderElection.renewDeadlineSeconds is %d: %s" $renew $fix | fail -}}
{{- end -}}
- {name: TENSAFE_LEASE_SECONDS, value: {{ $lease | quote }}}
- {name: TENSAFE_RENEW_SECONDS, value: {{ $renew | quote }}}
- {name: TENSAFE_RETRY_SECONDS, value: {{ $retry | quote }}}
{{- end -}}

{{/* Names of the pull secrets of jobs, separated by commas. */}}
{{- define "tensafe.pullSecrets" -}}
{{- range $index, $secret := .Values.jobs.imagePullSecrets }}{{ if $index }},{{ end }}{{ $secret.name }}{{ end -}}
{{- end -}}

{{/* Labels of the pod of `helm test`, which no selector of the operator matches. */}}
{{- define "tensafe.testSelector" -}}
app.kubernetes.io/name: {{ include "tensafe.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tensafe.testLabels" -}}
{{ include "tensafe.testSelector" . }}
app.kubernetes.io/part-of: tensafe
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Annotations of an object of `helm test`, from its weight: objects are created in this order. The pod, of
weight 0, stays for its log until the next test. `helm test --logs` looks for a pod of the name of each object. */}}
{{- define "tensafe.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation{{ if ne . "0" }},hook-succeeded{{ end }}
{{- end -}}

{{/* What the pods of jobs may connect to, as JSON. */}}
{{- define "tensafe.jobNetwork" -}}
{{- $ports := .Values.jobs.networkPolicy.apiServerPorts | default .Values.networkPolicy.apiServerPorts -}}
{{- merge (dict "apiServerPorts" $ports) .Values.jobs.networkPolicy | toJson -}}
{{- end -}}

{{/* The operator's rights in each of its namespaces. It reads no Secret, runs no command in a pod and creates no
role. */}}
{{- define "tensafe.rules" -}}
- apiGroups: [tensafe.io]
  resources: [tensafetrainingjobs]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [tensafe.io]
  resources: [tensafetrainingjobs/status]
  verbs: [patch]
- apiGroups: [tensafe.io]            # needed for blockOwnerDeletion where the API server enforces it
  resources: [tensafetrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [tensafe.io]
  resources: [privacyledgers]
  verbs: [get, list, watch, create]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, watch, create]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
- apiGroups: [""]
  resources: [serviceaccounts]         # one in a namespace, which its jobs share
  verbs: [create, patch]
- apiGroups: [""]
  resources: [secrets]                # the keys of jobs and attempts: created with them, deleted at their end
  verbs: [create, delete]
{{- if eq .Values.jobs.tls.mode "CertManager" }}
- apiGroups: [cert-manager.io]
  resources: [certificates]           # one for each attempt, deleted when it has ended
  verbs: [get, create, delete]
{{- end }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]         # made with a job, and brought back while it runs
  verbs: [get, list, watch, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]            # the rights of the service accounts of workers
  verbs: [create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [tensafe-trainer]
  verbs: [bind]
{{- end -}}
