{{/* Spec of a HorizontalPodAutoscaler without its target. Arguments: what, scaling. */}}
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
{{- if has "control" .roles }}{{ $_ := set $queues "control" "workflow,activity" }}{{ $_ := set $queues "webhooks" "activity" }}{{ end -}}
{{- if has "io" .roles }}{{ $_ := set $queues "io" "activity" }}{{ $_ := set $queues "outputs" "activity" }}{{ end -}}
{{- if has "inference" .roles -}}
{{- $_ := set $queues "dispatch" "activity" -}}
{{- if not .models }}{{ fail (printf "workers %q: autoscaling by backlog needs task queues: set models or autoscaling.queues" .name) }}{{ end -}}
{{- range .models -}}
{{- if not (regexMatch "^[A-Za-z0-9_]{1,100}$" .) }}{{ fail (printf "workers %q: the name of the task queue of model %q has a digest: list the queue that `batchwright queues` prints in autoscaling.queues" $.name .) }}{{ end -}}
{{- $_ := set $queues (printf "inference.%s" .) "activity" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $queues -}}
{{- end -}}

{{/*
Requests in flight that a pool needs to finish its lines within their completion windows, as PromQL: for each model the required results per
second times the seconds in flight per result. All requests count, also failed ones, so the seconds include retries. Arguments: root, pool.
*/}}
{{- define "batchwright.demand" -}}
{{- $prometheus := .root.Values.keda.prometheus -}}
{{- $matchers := $prometheus.matchers | default (printf "namespace=%q" .root.Release.Namespace) -}}
{{- if .pool.models -}}
{{- $models := list -}}
{{- range .pool.models }}{{ $models = append $models (regexQuoteMeta .) }}{{ end -}}
{{- $matchers = printf "%s,model=~%q" $matchers (join "|" $models) -}}
{{- end -}}
{{- $window := printf "{%s}[%s]" $matchers $prometheus.window -}}
sum(max by (model) (batchwright_model_required_results_per_second{ {{- $matchers -}} })
* (sum by (model) (rate(batchwright_model_request_execution_duration_seconds_sum{{ $window }}))
/ (sum by (model) (rate(batchwright_request_results_total{{ $window }})) > 0)))
{{- end -}}

{{/* Spec of a ScaledObject without its target. Arguments: root, pool, and, if workers are versioned, deployment. */}}
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
      # A batch may run for hours without work for the pool of another model.
      includeRunningWorkflowCount: "false"
      {{- with $.deployment }}
      workerDeploymentName: {{ . | quote }}
      workerDeploymentBuildId: {{ "{{temporal_worker_build_id}}" | quote }}
      {{- end }}
    {{- with include "batchwright.kedaAuthentication" $.root }}
    authenticationRef: {name: {{ . }}}
    {{- end }}
  {{- end }}
  {{- $prometheus := .root.Values.keda.prometheus }}
  {{- if and $prometheus.address (has "inference" .pool.roles) }}
  {{- if .deployment }}{{ fail "keda.prometheus.address is set and versioning.enabled is true: each version of a pool would get the pods that all lines need. Unset keda.prometheus.address" }}{{ end }}
  - type: prometheus
    metadata:
      serverAddress: {{ $prometheus.address | quote }}
      query: {{ include "batchwright.demand" . | replace "\n" " " | toJson }}
      threshold: {{ .pool.autoscaling.targetInFlight | quote }}
      {{- with $prometheus.authModes }}
      authModes: {{ . | quote }}
      {{- end }}
    {{- with $prometheus.authenticationRef }}
    authenticationRef: {name: {{ . }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The name of a TriggerAuthentication, or an empty string. */}}
{{- define "batchwright.kedaAuthentication" -}}
{{- $temporal := .Values.temporal -}}
{{- if .Values.keda.authenticationRef -}}
{{ .Values.keda.authenticationRef }}
{{- else if or $temporal.apiKey.existingSecret $temporal.tls.existingSecret -}}
{{ include "batchwright.fullname" . }}-temporal
{{- end -}}
{{- end -}}
