{{- define "punctual.labels" -}}
app.kubernetes.io/name: punctual
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The name of all objects: that of the release. Alerts and dashboard distinguish environments by job and namespace. */}}
{{- define "punctual.name" -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Seconds of a duration in seconds or minutes. */}}
{{- define "punctual.seconds" -}}
{{- $text := toString . -}}
{{- if regexMatch "^[0-9]+s$" $text }}{{ trimSuffix "s" $text }}
{{- else if regexMatch "^[0-9]+m$" $text }}{{ mul 60 (int (trimSuffix "m" $text)) }}
{{- else }}{{ fail (printf "config.shutdown_timeout is %q: write it in seconds or minutes, such as 10s" $text) }}
{{- end }}
{{- end }}

{{/* The port of an address. */}}
{{- define "punctual.port" -}}
{{ regexFind "[0-9]+$" (toString .) }}
{{- end }}
