package key

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Rule determines which objects of a main resource have the same key. It is comparable; the zero value gives every
// object the key of its name.
type Rule struct {
	// Namespace gives all objects of a namespace one key.
	Namespace bool
	// Label gives all objects with the same value of this label one key; empty for other rules.
	Label string
}

// RuleOf returns the rule that a ring declares; nil declares the name. The API server accepts no other types.
func RuleOf(k *v1alpha1.ObjectKey) Rule {
	switch {
	case k == nil:
		return Rule{}
	case k.Type == v1alpha1.KeyNamespace:
		return Rule{Namespace: true}
	case k.Type == v1alpha1.KeyLabel:
		return Rule{Label: k.Label}
	}

	return Rule{}
}

// ByName reports whether every object has a key of its own.
func (r Rule) ByName() bool { return r == Rule{} }

// String describes the rule to a person.
func (r Rule) String() string {
	switch {
	case r.Namespace:
		return "the namespace"
	case r.Label != "":
		return "the label " + r.Label
	}

	return "the name"
}

// Of returns the key of a main object. found is false if the object lacks what the rule asks for: the label, or a value
// of it, or the namespace. Such an object has the key of its name, so that it belongs to exactly one shard all the
// same.
//
//   - By the namespace, the key is that of the Namespace object, which is cluster-scoped: /Namespace//team-a. So the
//     objects of all resources in a namespace have the same key, and the Namespace itself has it by its name.
//   - By a label, the key has no kind, unlike that of any object. The other parts are the prefix of the label's key,
//     its name, and the value: example.com//tenant/acme.
func (r Rule) Of(gk schema.GroupKind, obj metav1.Object) (k Key, found bool) {
	byName := Key{Group: gk.Group, Kind: gk.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}

	return r.OfParts(byName, obj.GetLabels()[r.Label])
}

// OfParts is like [Rule.Of] for an object with the key byName and this value of the rule's label. The value is ignored
// by other rules.
func (r Rule) OfParts(byName Key, value string) (k Key, found bool) {
	switch {
	case r.Namespace && byName.Namespace != "":
		return OfNamespace(byName.Namespace), true
	case r.Namespace && byName.Group == "" && byName.Kind == kindNamespace:
		return byName, true
	case r.Label != "" && value != "":
		return OfLabel(r.Label, value), true
	}

	return byName, r.ByName()
}

// kindNamespace is the kind of namespaces, in the core group.
const kindNamespace = "Namespace"

// OfNamespace returns the key of everything in a namespace.
func OfNamespace(name string) Key { return Key{Kind: kindNamespace, Name: name} }

// OfLabel returns the key of all objects with this value of a label.
func OfLabel(label, value string) Key {
	prefix, name, ok := strings.Cut(label, "/")
	if !ok {
		prefix, name = "", label
	}

	return Key{Group: prefix, Namespace: name, Name: value}
}

// Label returns the label and the value that a key by a label consists of; ok is false for other keys.
func (k Key) Label() (label, value string, ok bool) {
	switch {
	case k.Kind != "" || k.Namespace == "":
		return "", "", false
	case k.Group == "":
		return k.Namespace, k.Name, true
	}

	return k.Group + "/" + k.Namespace, k.Name, true
}
