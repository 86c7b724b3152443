{{- define "batchwright.fullname" -}}
{{- $name := .Values.fullnameOverride | default (contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name)) -}}
{{- if gt (len $name) 30 -}}
{{- fail (printf "the name %q has more than 30 characters, and what is derived from it would be cut: set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "batchwright.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "batchwright.labels" -}}
{{ include "batchwright.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "batchwright.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "batchwright.fullname" .) "default") -}}
{{- end -}}

{{- define "batchwright.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Settings as variables, OpenTelemetry's by its names; JSON for what is no string, as settings are read. */}}
{{- define "batchwright.variables" -}}
{{- range $name, $value := . }}
{{ hasPrefix "otel_" $name | ternary "" "BATCHWRIGHT_" }}{{ upper $name }}: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end -}}
{{- end -}}

{{/* Variables with secrets, and those that the setup job needs before there is a ConfigMap. */}}
{{- define "batchwright.databaseEnv" -}}
- name: BATCHWRIGHT_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret names the Secret with PostgreSQL's URL" .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end -}}

{{- define "batchwright.temporalEnv" -}}
- name: BATCHWRIGHT_TEMPORAL_ADDRESS
  value: {{ required "temporal.address is host:port of Temporal's frontend" .Values.temporal.address | quote }}
- name: BATCHWRIGHT_TEMPORAL_NAMESPACE
  value: {{ .Values.temporal.namespace | quote }}
{{- with .Values.temporal.apiKey }}
{{- if .existingSecret }}
- name: BATCHWRIGHT_TEMPORAL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.temporal.tls }}
{{- if and (or .authority .clientCertificate) (not .existingSecret) }}{{ fail "temporal.tls.existingSecret names the Secret with the certificates" }}{{ end }}
{{- if .authority }}
- name: BATCHWRIGHT_TEMPORAL_TLS_CA_FILE
  value: /etc/batchwright/temporal-tls/ca.crt
{{- end }}
{{- if .clientCertificate }}
- name: BATCHWRIGHT_TEMPORAL_TLS_CERT_FILE
  value: /etc/batchwright/temporal-tls/tls.crt
- name: BATCHWRIGHT_TEMPORAL_TLS_KEY_FILE
  value: /etc/batchwright/temporal-tls/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{- define "batchwright.payloadEnv" -}}
{{- with .Values.payloadKeys }}
{{- if and .existingSecret (not .ids) }}{{ fail "payloadKeys.ids lists the keys of payloadKeys.existingSecret" }}{{ end }}
{{- if .existingSecret }}
{{- $references := list }}
{{- range .ids }}{{ $references = append $references (printf "%s=file:/etc/batchwright/payload-keys/%s" . .) }}{{ end }}
- name: BATCHWRIGHT_PAYLOAD_KEYS
  value: {{ toJson $references | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "batchwright.tlsMount" -}}
{{- if .Values.temporal.tls.existingSecret }}
- name: temporal-tls
  mountPath: /etc/batchwright/temporal-tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* Files of the containers that last. */}}
{{- define "batchwright.mounts" -}}
{{- include "batchwright.tlsMount" . }}
{{- if .Values.payloadKeys.existingSecret }}
- name: payload-keys
  mountPath: /etc/batchwright/payload-keys
  readOnly: true
{{- end }}
{{- if .Values.registry.config }}
- name: registry
  mountPath: /etc/batchwright/registry
  readOnly: true
{{- end }}
{{- if .Values.registry.existingSecret }}
- name: backend-keys
  mountPath: /etc/batchwright/secrets
  readOnly: true
{{- end }}
{{- end -}}

{{/* Arguments: root, spool (its size). */}}
{{- define "batchwright.setupVolumes" -}}
- name: spool
  emptyDir: {sizeLimit: {{ .spool }}}
{{- with .root.Values.temporal.tls.existingSecret }}
- name: temporal-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* The same. */}}
{{- define "batchwright.volumes" -}}
{{- include "batchwright.setupVolumes" . }}
{{- with .root.Values.payloadKeys.existingSecret }}
- name: payload-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if .root.Values.registry.config }}
- name: registry
  configMap: {name: {{ include "batchwright.fullname" .root }}-registry}
{{- end }}
{{- with .root.Values.registry.existingSecret }}
- name: backend-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "batchwright.env" -}}
{{ include "batchwright.databaseEnv" . }}
{{ include "batchwright.temporalEnv" . }}
{{- include "batchwright.payloadEnv" . }}
{{- with .Values.backends }}
{{- if .existingSecret }}
- name: BATCHWRIGHT_BACKEND_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.callbacks }}
{{- if .existingSecret }}
- name: BATCHWRIGHT_CALLBACK_SECRET
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.s3.existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: access-key-id}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: secret-access-key}}
{{- end }}
{{- end -}}

{{/* Whole seconds of the drain; the default is that of the setting. */}}
{{- define "batchwright.drain" -}}
{{- $seconds := hasKey . "drain_seconds" | ternary .drain_seconds 30 -}}
{{- ceil $seconds | int -}}
{{- end -}}

{{/* Arguments: what, least, chosen (may be null). The least has a margin for the exit itself. */}}
{{- define "batchwright.grace" -}}
{{- $least := int .least -}}
{{- if kindIs "invalid" .chosen -}}
{{- add $least 10 -}}
{{- else if lt (int .chosen) $least -}}
{{- fail (printf "%s: terminationGracePeriodSeconds is %d, but its drain needs at least %d s (settings.drain_seconds and what an exit takes)" .what (int .chosen) $least) -}}
{{- else -}}
{{- int .chosen -}}
{{- end -}}
{{- end -}}

{{- define "batchwright.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "batchwright.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What pods of all kinds share. Arguments: root, labels (a map that selects the pods), placement. */}}
{{- define "batchwright.placement" -}}
serviceAccountName: {{ include "batchwright.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "batchwright.podSecurity" . | nindent 2 }}
topologySpreadConstraints:
  {{- range tuple "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- toYaml $.labels | nindent 8 }}
  {{- end }}
{{- include "batchwright.nodes" .placement }}
{{- end -}}

{{/* Which nodes a pod may be on, and before whom. Argument: what says so in the values. */}}
{{- define "batchwright.nodes" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of a container, with the disk it asks of its node unless the values say. Arguments: resources, disk. */}}
{{- define "batchwright.resources" -}}
{{- $disk := dict "ephemeral-storage" .disk -}}
{{- $requests := merge (dict) (.resources.requests | default dict) $disk -}}
{{- toYaml (merge (dict "requests" $requests) .resources) -}}
{{- end -}}

{{/* What all containers share. Argument: root. */}}
{{- define "batchwright.anyContainer" -}}
image: {{ include "batchwright.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "batchwright.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: spool
    mountPath: /var/spool/batchwright
{{- end -}}

{{/* The same of those that last. */}}
{{- define "batchwright.container" -}}
{{ include "batchwright.anyContainer" . }}
  {{- with include "batchwright.mounts" . }}{{ . | trim | nindent 2 }}{{ end }}
{{- end -}}

{{/* The same of the setup, which needs no key of payloads or backends. */}}
{{- define "batchwright.setupContainer" -}}
{{ include "batchwright.anyContainer" . }}
  {{- with include "batchwright.tlsMount" . }}{{ . | trim | nindent 2 }}{{ end }}
{{- end -}}

{{- define "batchwright.policyTypes" -}}
policyTypes:
  - Ingress
  {{- if .Values.networkPolicy.egress }}
  - Egress
  {{- end }}
{{- end -}}

{{/* What pods may connect to; where nothing is said, to all. */}}
{{- define "batchwright.egress" -}}
{{- with .Values.networkPolicy.egress -}}
egress:
  - ports:
      - {port: 53, protocol: UDP}
      - {port: 53, protocol: TCP}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
