{{/* Sets a key, in a map its keys. Not mergeOverwrite, for which a false or 0 is no value. */}}
{{- define "batchwright.put" -}}
{{- $old := get .into .key -}}
{{- if and (kindIs "map" $old) (kindIs "map" .value) -}}
{{- range $key, $value := .value }}{{ $_ := set $old $key $value }}{{ end -}}
{{- else -}}
{{- $_ := set .into .key .value -}}
{{- end -}}
{{- end -}}

{{/* The pools, each with the defaults in it, as a JSON list; fails where they do not make a whole. */}}
{{- define "batchwright.pools" -}}
{{- $pools := list -}}
{{- $names := list -}}
{{- $roles := list -}}
{{- range .Values.workers -}}
{{- if has .name $names }}{{ fail (printf "workers: there are two pools named %q" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- $roles = concat $roles .roles -}}
{{- if and .models (not (has "inference" .roles)) }}{{ fail (printf "workers %q: models are of the role inference, which it does not have" .name) }}{{ end -}}
{{- $pool := deepCopy $.Values.workerDefaults -}}
{{- range $key, $value := . -}}
{{- include "batchwright.put" (dict "into" $pool "key" $key "value" $value) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- range tuple "control" "io" "inference" -}}
{{- if not (has . $roles) }}{{ fail (printf "workers: no pool has the role %s, and batches need all three" .) }}{{ end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* Arguments: root, pool. */}}
{{- define "batchwright.workerName" -}}
{{ include "batchwright.fullname" .root }}-worker-{{ .pool.name }}
{{- end -}}

{{- define "batchwright.workerLabels" -}}
{{ include "batchwright.selector" .root }}
app.kubernetes.io/component: worker
batchwright/pool: {{ .pool.name }}
{{- end -}}

{{/* The pod of a pool. Arguments: root, pool. */}}
{{- define "batchwright.workerPod" -}}
{{- $labels := include "batchwright.workerLabels" . | fromYaml -}}
{{- $drain := include "batchwright.drain" (hasKey .pool.settings "drain_seconds" | ternary .pool.settings .root.Values.settings) | int -}}
metadata:
  labels:
    {{- toYaml (merge (deepCopy $labels) .root.Values.podLabels) | nindent 4 }}
  annotations:
    checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
    {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- include "batchwright.placement" (dict "root" .root "labels" $labels "placement" .pool) | nindent 2 }}
  # A worker gives up its drain 15 s after the setting says.
  terminationGracePeriodSeconds: {{ include "batchwright.grace" (dict "what" (printf "workers %q" .pool.name) "least" (add $drain 20) "chosen" .pool.terminationGracePeriodSeconds) }}
  containers:
    - name: worker
      {{- if .root.Values.versioning.enabled }}
      # The controller gives the two variables; in a command Kubernetes puts their values in.
      command:
        - env
        - BATCHWRIGHT_DEPLOYMENT_NAME=$(TEMPORAL_DEPLOYMENT_NAME)
        - BATCHWRIGHT_BUILD_ID=$(TEMPORAL_WORKER_BUILD_ID)
        - batchwright
      {{- end }}
      args:
        - worker
        - --roles
        - {{ join "," .pool.roles }}
        {{- with .pool.models }}
        - --models
        - {{ join "," . | quote }}
        {{- end }}
      {{- include "batchwright.container" .root | nindent 6 }}
      envFrom:
        - configMapRef:
            name: {{ include "batchwright.fullname" .root }}
      env:
        {{- include "batchwright.env" .root | nindent 8 }}
        {{- range $name, $value := include "batchwright.variables" .pool.settings | fromYaml }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
        {{- with .root.Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - name: metrics
          containerPort: 9090
      resources:
        {{- include "batchwright.resources" (dict "resources" .pool.resources "disk" (has "io" .pool.roles | ternary .pool.spoolSize "64Mi")) | nindent 8 }}
      # It answers once it has reached Temporal and PostgreSQL.
      startupProbe:
        httpGet: {path: /healthz, port: metrics}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: metrics}
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        timeoutSeconds: 6
  volumes:
    {{- include "batchwright.volumes" (dict "root" .root "spool" .pool.spoolSize) | nindent 4 }}
{{- end -}}
