{{- define "batchwright.fullname" -}}
{{- $name := .Values.fullnameOverride | default (contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name)) -}}
{{- if gt (len $name) 30 -}}
{{- fail (printf "the name %q has more than 30 characters, so derived names would be cut: set fullnameOverride to a shorter name" $name) -}}
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

{{/* Settings as environment variables, as JSON unless they are strings. OpenTelemetry's settings keep their own names. */}}
{{- define "batchwright.variables" -}}
{{- range $name, $value := . }}
{{ hasPrefix "otel_" $name | ternary "" "BATCHWRIGHT_" }}{{ upper $name }}: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end -}}
{{- end -}}

{{/* Variables with secrets, and variables that the setup job needs before the ConfigMap exists. */}}
{{- define "batchwright.databaseEnv" -}}
- name: BATCHWRIGHT_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret is empty: set it to the Secret with PostgreSQL's URL" .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end -}}

{{/* The same for migrations, which may use another database role. */}}
{{- define "batchwright.migrationsEnv" -}}
{{- with .Values.database.migrations }}
{{- if .existingSecret -}}
- name: BATCHWRIGHT_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- else -}}
{{- include "batchwright.databaseEnv" $ -}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "batchwright.temporalEnv" -}}
- name: BATCHWRIGHT_TEMPORAL_ADDRESS
  value: {{ required "temporal.address is empty: set it to host:port of Temporal's frontend" .Values.temporal.address | quote }}
- name: BATCHWRIGHT_TEMPORAL_NAMESPACE
  value: {{ .Values.temporal.namespace | quote }}
{{- with .Values.temporal.apiKey }}
{{- if .existingSecret }}
- name: BATCHWRIGHT_TEMPORAL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.temporal.tls }}
{{- if and (or .authority .clientCertificate) (not .existingSecret) }}{{ fail "temporal.tls.authority or clientCertificate is true, but temporal.tls.existingSecret is empty: set it to the Secret with the certificates" }}{{ end }}
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
{{- if and .existingSecret (not .ids) }}{{ fail "payloadKeys.ids is empty: list the keys of payloadKeys.existingSecret" }}{{ end }}
{{- if and .ids (not .existingSecret) }}{{ fail "payloadKeys.ids is set, but payloadKeys.existingSecret is empty, so nothing would be encrypted: set it to the Secret with these keys" }}{{ end }}
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

{{/* Volume mounts of the API and the workers. */}}
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

{{/* Volumes of the setup job. Arguments: root, spool (its size). */}}
{{- define "batchwright.setupVolumes" -}}
- name: spool
  emptyDir: {sizeLimit: {{ .spool }}}
{{- with .root.Values.temporal.tls.existingSecret }}
- name: temporal-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* Volumes of the API and the workers. Arguments: root, spool. */}}
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
{{- if not $.Values.settings.callback_url }}{{ fail "callbacks.existingSecret is set, but settings.callback_url is empty, so no backend would be given a callback URL: set it to the URL at which backends reach the API" }}{{ end }}
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

{{/* The drain in whole seconds; the default is that of the setting. */}}
{{- define "batchwright.drain" -}}
{{- $seconds := hasKey . "drain_seconds" | ternary .drain_seconds 30 -}}
{{- ceil $seconds | int -}}
{{- end -}}

{{/* terminationGracePeriodSeconds. Arguments: what (a name for the error), least, chosen (may be null). `least` includes time for the exit. */}}
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

{{/* Pod spec shared by all pods. Arguments: root, labels (a map that selects the pods), placement. */}}
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

{{/* Scheduling of a pod: priority class, node selector, tolerations, affinity. Argument: the part of the values that has them. */}}
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

{{/* Resources of a container, with a request for local disk unless the values have one. Arguments: resources, disk. */}}
{{- define "batchwright.resources" -}}
{{- $disk := dict "ephemeral-storage" .disk -}}
{{- $requests := merge (dict) (.resources.requests | default dict) $disk -}}
{{- toYaml (merge (dict "requests" $requests) .resources) -}}
{{- end -}}

{{/* Container spec shared by all containers. Argument: root. */}}
{{- define "batchwright.anyContainer" -}}
image: {{ include "batchwright.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "batchwright.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: spool
    mountPath: /var/spool/batchwright
{{- end -}}

{{/* Container spec shared by the API and the workers. */}}
{{- define "batchwright.container" -}}
{{ include "batchwright.anyContainer" . }}
  {{- with include "batchwright.mounts" . }}{{ . | trim | nindent 2 }}{{ end }}
{{- end -}}

{{/* Container spec of the setup job, without keys of payloads and backends. */}}
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

{{/* Egress rules of pods; everything is allowed by default. */}}
{{- define "batchwright.egress" -}}
{{- with .Values.networkPolicy.egress -}}
egress:
  - ports:
      - {port: 53, protocol: UDP}
      - {port: 53, protocol: TCP}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* "open" if a label selector selects everything or is absent. */}}
{{- define "batchwright.selectsAll" -}}
{{- if not (or (dig "matchLabels" nil (. | default dict)) (dig "matchExpressions" nil (. | default dict))) }}open{{ end -}}
{{- end -}}

{{/* Fails if the API trusts the tenant header and pods other than the gateway may reach it. */}}
{{- define "batchwright.checkGateway" -}}
{{- $remedy := "with api.auth=trusted_header, everyone who reaches the API may act as any tenant" -}}
{{- if not .Values.networkPolicy.enabled -}}
{{- fail (printf "%s: set networkPolicy.enabled and let networkPolicy.apiFrom select the gateway only" $remedy) -}}
{{- end -}}
{{- range $list := list "apiFrom" "metricsFrom" -}}
{{- range $peer := index $.Values.networkPolicy $list -}}
{{- $open := false -}}
{{- if $peer.ipBlock -}}
{{- $open = hasSuffix "/0" (dig "cidr" "" $peer.ipBlock) -}}
{{- else -}}
{{- $open = and (include "batchwright.selectsAll" $peer.podSelector) (include "batchwright.selectsAll" $peer.namespaceSelector) -}}
{{- end -}}
{{- if $open -}}
{{- fail (printf "%s: networkPolicy.%s must not select all pods or addresses, as %s does; let it select the gateway only" $remedy $list (toJson $peer)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
