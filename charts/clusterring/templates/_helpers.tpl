{{- /* The reference of an image, from the root and the values of the image. */ -}}
{{- define "clusterring.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- with $image.registry | default $root.Values.image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}
{{- else }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}
