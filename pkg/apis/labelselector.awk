# Adds to the generated schema of spec.namespaceSelector and spec.objectSelector what a label selector must be like: its Go type is one of
# Kubernetes, which no marker reaches. Keys of matchLabels cannot be checked: a schema has no words for them, and a rule for them would cost too
# much. An object selector is limited, because the assigner registers a condition for each of its requirements.

/^ *(namespaceSelector|objectSelector):$/ { inside = 1; limited = /object/; depth = match($0, /[^ ]/) }
inside && match($0, /[^ ]/) <= depth && !/^ *(namespaceSelector|objectSelector):$/ { inside = 0 }
inside && limited && /^ *matchExpressions:$/ { print; sub(/matchExpressions:/, "  maxItems: 16") }
inside && limited && /^ *matchLabels:$/ { print; sub(/matchLabels:/, "  maxProperties: 16") }
inside && /^ *(additionalProperties|items):$/ { is = "value" }
inside && /^ *key:$/ { is = "key" }
inside && /^ *operator:$/ { is = "" }
inside && is && /^ *type: string$/ {
	indent = substr($0, 1, match($0, /[^ ]/) - 1)
	if (is == "value") {
		print indent "maxLength: 63"
		print indent "pattern: ^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
	} else {
		print indent "maxLength: 317"
		print indent "pattern: ^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
	}
	is = ""
}
{ print }
