{{/* Of a HorizontalPodAutoscaler's spec, all but its target. Arguments: what, scaling. */}}
{{- define "batchwright.hpa" -}}
{{- include "batchwright.range" . -}}
minReplicas: {{ .scaling.minReplicas }}
maxReplicas: {{ .scaling.maxReplicas }}
behavior:
  scaleDown: {stabilizationWindowSeconds: 300}
metrics:
  - type: Resource
    resource:
      name: cpu
      target: {type: Utilization, averageUtilization: {{ .scaling.targetCPU }}}
{{- end -}}

{{- define "batchwright.range" -}}
{{- if gt (int .scaling.minReplicas) (int .scaling.maxReplicas) -}}
{{- fail (printf "%s: autoscaling.minReplicas (%d) is more than maxReplicas (%d)" .what (int .scaling.minReplicas) (int .scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{/* Task queues of a pool, as a JSON object of queue to types. Argument: pool. */}}
{{- define "batchwright.queues" -}}
{{- $queues := dict -}}
{{- if .autoscaling.queues -}}
{{- range .autoscaling.queues }}{{ $_ := set $queues . (eq . "control" | ternary "workflow,activity" "activity") }}{{ end -}}
{{- else -}}
{{- if has "control" .roles }}{{ $_ := set $queues "control" "workflow,activity" }}{{ end -}}
{{- if has "io" .roles }}{{ $_ := set $queues "io" "activity" }}{{ end -}}
{{- if has "inference" .roles -}}
{{- $_ := set $queues "dispatch" "activity" -}}
{{- if not .models }}{{ fail (printf "workers %q: autoscaling by backlog needs the models, or autoscaling.queues: each model has a task queue" .name) }}{{ end -}}
{{- range .models -}}
{{- if not (regexMatch "^[A-Za-z0-9_]{1,100}$" .) }}{{ fail (printf "workers %q: the task queue of model %q has a name with a digest: list what `batchwright queues` prints in autoscaling.queues" $.name .) }}{{ end -}}
{{- $_ := set $queues (printf "inference.%s" .) "activity" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $queues -}}
{{- end -}}

{{/* Of a ScaledObject's spec, all but its target. Arguments: root, pool, and where workers are versioned deployment. */}}
{{- define "batchwright.keda" -}}
{{- include "batchwright.range" (dict "what" (printf "workers %q" .pool.name) "scaling" .pool.autoscaling) -}}
minReplicaCount: {{ .pool.autoscaling.minReplicas }}
maxReplicaCount: {{ .pool.autoscaling.maxReplicas }}
pollingInterval: {{ .root.Values.keda.pollingInterval }}
advanced:
  horizontalPodAutoscalerConfig:
    behavior:
      scaleDown: {stabilizationWindowSeconds: {{ .root.Values.keda.scaleDownSeconds }}}
triggers:
  {{- range $queue, $types := include "batchwright.queues" .pool | fromJson }}
  - type: temporal
    metadata:
      endpoint: {{ $.root.Values.temporal.address | quote }}
      namespace: {{ $.root.Values.temporal.namespace | quote }}
      taskQueue: {{ $queue | quote }}
      queueTypes: {{ $types | quote }}
      targetQueueSize: {{ $.pool.autoscaling.targetBacklog | quote }}
      # A batch runs for hours without work for a pool of another model.
      includeRunningWorkflowCount: "false"
      {{- with $.deployment }}
      workerDeploymentName: {{ . | quote }}
      workerDeploymentBuildId: {{ "{{temporal_worker_build_id}}" | quote }}
      {{- end }}
    {{- with include "batchwright.kedaAuthentication" $.root }}
    authenticationRef: {name: {{ . }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The name of a TriggerAuthentication, or nothing. */}}
{{- define "batchwright.kedaAuthentication" -}}
{{- $temporal := .Values.temporal -}}
{{- if .Values.keda.authenticationRef -}}
{{ .Values.keda.authenticationRef }}
{{- else if or $temporal.apiKey.existingSecret $temporal.tls.existingSecret -}}
{{ include "batchwright.fullname" . }}-temporal
{{- end -}}
{{- end -}}
