{{/* Name of the release's objects. Cut at 63 because the Service's name is a DNS label. */}}
{{- define "specserver.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of cluster-wide objects: releases of one name in two namespaces must not meet. RBAC names may have 253 characters. */}}
{{- define "specserver.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "specserver.fullname" .) -}}
{{- end -}}

{{- define "specserver.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "specserver.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "specserver.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The account that the roles are bound to. Never the namespace's "default" account: any other pod may run under it. */}}
{{- define "specserver.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "specserver.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name: needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "specserver.subjects" -}}
- kind: ServiceAccount
  name: {{ include "specserver.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{- define "specserver.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The operator's environment. A name that stands twice is an error: server-side apply refuses it, in words of its own. */}}
{{- define "specserver.env" -}}
{{- $own := list "SPECSERVER_NAMESPACES" "SPECSERVER_LOG_LEVEL" "SPECSERVER_LOG_FORMAT" "SPECSERVER_PORT" -}}
{{- $seen := dict -}}
{{- range .Values.extraEnv -}}
{{- if has .name $own -}}
{{- fail (printf "extraEnv: %s is set by the chart itself: use watchNamespaces, logLevel or logFormat" .name) -}}
{{- end -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "extraEnv: %s stands there twice" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
- name: SPECSERVER_NAMESPACES # empty: all
  value: {{ join "," .Values.watchNamespaces | quote }}
- name: SPECSERVER_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: SPECSERVER_LOG_FORMAT
  value: {{ .Values.logFormat }}
- name: SPECSERVER_PORT
  value: "8080"
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
What the operator may do where it watches: what it does, and no more. Server-side apply needs `create` and `patch`; nothing is
ever deleted, owner references do that.
*/}}
{{- define "specserver.rules" -}}
- apiGroups: [specserver.io]
  resources: [speculativeservers]
  verbs: [get, list, watch]
- apiGroups: [specserver.io]
  resources: [speculativeservers/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion: clusters with the admission plugin OwnerReferencesPermissionEnforcement demand it.
- apiGroups: [specserver.io]
  resources: [speculativeservers/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
# Which revision a pod belongs to.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch]
# `patch` takes a pod out of the Service before it goes.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# Keys that a SpeculativeServer names, and those that the operator makes. Each is read by name: no list, no watch. Those that
# are there stay as they are: no patch.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* The Lease that keeps a second operator waiting. `create` can't be bound to a name. */}}
{{- define "specserver.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [specserver-operator]
  verbs: [get, patch]
{{- end -}}
