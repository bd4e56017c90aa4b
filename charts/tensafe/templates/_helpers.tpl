{{/* Name of the operator's objects: `tensafe-operator` in a release called tensafe. */}}
{{- define "tensafe.operator" -}}
{{- if contains "tensafe" .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 63 -}}
{{- else -}}
{{- printf "%s-tensafe-operator" .Release.Name | trunc 63 -}}
{{- end -}}
{{- end -}}

{{/* Name of the operator's cluster-scoped objects, unique among releases in different namespaces. */}}
{{- define "tensafe.clusterName" -}}
{{- printf "%s-%s" (include "tensafe.operator" .) .Release.Namespace | trunc 63 -}}
{{- end -}}

{{- define "tensafe.selector" -}}
app.kubernetes.io/name: tensafe-operator
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
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
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
  resources: [configmaps, serviceaccounts]
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets]                # the keys of jobs: created with a job, deleted when it has ended
  verbs: [create, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]         # made with a job, and brought back while it runs
  verbs: [get, list, watch, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]           # the rights of a job's workers: deleted when it has ended
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [tensafe-trainer]
  verbs: [bind]
{{- end -}}
