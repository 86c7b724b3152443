{{/* Sets a key; merges a map key by key. mergeOverwrite would ignore false and 0. */}}
{{- define "batchwright.put" -}}
{{- $old := get .into .key -}}
{{- if and (kindIs "map" $old) (kindIs "map" .value) -}}
{{- range $key, $value := .value }}{{ $_ := set $old $key $value }}{{ end -}}
{{- else -}}
{{- $_ := set .into .key .value -}}
{{- end -}}
{{- end -}}

{{/* The pools with their defaults as a JSON list; fails if a role is missing or pools contradict each other. */}}
{{- define "batchwright.pools" -}}
{{- $pools := list -}}
{{- $names := list -}}
{{- $roles := list -}}
{{- range .Values.workers -}}
{{- if has .name $names }}{{ fail (printf "workers: there are two pools named %q" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- $roles = concat $roles .roles -}}
{{- if and .models (not (has "inference" .roles)) }}{{ fail (printf "workers %q: the pool has models but not the role inference: add the role or remove the models" .name) }}{{ end -}}
{{- if hasKey (.settings | default dict) "storage" }}{{ fail (printf "workers %q: settings.storage is set for one pool only, but the API and all workers use the same storage: set it in settings" .name) }}{{ end -}}
{{- $pool := deepCopy $.Values.workerDefaults -}}
{{- range $key, $value := . -}}
{{- include "batchwright.put" (dict "into" $pool "key" $key "value" $value) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- range tuple "control" "io" "inference" -}}
{{- if not (has . $roles) }}{{ fail (printf "workers: no pool has the role %s: add it to a pool, batches need all three roles" .) }}{{ end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* Name of a pool's Deployment. Arguments: root, pool. */}}
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
  # A worker ends its drain 15 s after drain_seconds at the latest.
  terminationGracePeriodSeconds: {{ include "batchwright.grace" (dict "what" (printf "workers %q" .pool.name) "least" (add $drain 20) "chosen" .pool.terminationGracePeriodSeconds) }}
  containers:
    - name: worker
      {{- if .root.Values.versioning.enabled }}
      # The controller sets the two variables; Kubernetes expands them in the command.
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
      # /healthz answers once the worker has reached Temporal and PostgreSQL.
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
