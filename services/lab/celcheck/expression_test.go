package celcheck

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/key"
)

// alphabet and positions are those of the package key, whose documentation describes what is computed here.
const (
	alphabet  = "abcdefghijklmnopqrstuvwxyz0123456789-./ABCDEFGHIJKLMNOPQRSTUVWXYZ:_"
	positions = 640
)

func constant(label string) uint64 {
	sum := sha256.Sum256([]byte("clusterring key hash v1/" + label))
	return binary.BigEndian.Uint64(sum[:8])%(key.Prime-1) + 1
}

// expressionOf returns a Kubernetes CEL expression of type int that computes the hash of a key. The arguments are CEL
// expressions of type string for the parts of the key, for example "request.kind.group" or "object.metadata.name".
//
// It needs libraries that every API server has had since Kubernetes 1.33 (two-variable comprehensions), and evaluates
// each argument once. Lists of one element and map replace the local variables that CEL does not have.
func expressionOf(group, kind, namespace, name string) string {
	var multipliers []string
	for i := range positions {
		multipliers = append(multipliers, strconv.FormatUint(constant(strconv.Itoa(i)), 10))
	}

	chars := fmt.Sprintf("((%s) + '/' + (%s) + '/' + (%s) + '/' + (%s)).split('')", group, kind, namespace, name)
	total := fmt.Sprintf("[[%s]].map(m, chars.transformList(i, c, ('%s'.indexOf(c) + 1) * m[i %% %d]).sum())[0]",
		strings.Join(multipliers, ","), alphabet, positions)

	return fmt.Sprintf("[%[1]s]"+
		".map(chars, (%[2]s + size(chars) * %[3]d + %[4]d) %% %[7]d)"+
		".map(x, [x * x %% %[7]d].map(square, square * square %% %[7]d * x %% %[7]d)[0])"+
		".map(y, (y * %[5]d + %[6]d) %% %[7]d)[0]",
		chars, total, constant("length"), constant("offset"), constant("multiply"), constant("multiply then"), key.Prime)
}

// expressionBy returns the expression for the key that the rule gives an object of this kind, which is the variable
// object.
func expressionBy(r key.Rule, gk schema.GroupKind, namespaced bool) string {
	group, kind, name := strconv.Quote(gk.Group), strconv.Quote(gk.Kind), "object.metadata.name"

	namespace := `""`
	if namespaced {
		namespace = "object.metadata.namespace"
	}

	switch {
	case r.Namespace && namespaced:
		return expressionOf(`""`, `"Namespace"`, `""`, namespace)
	case r.Label != "":
		k := key.OfLabel(r.Label, "")
		value := "object.metadata.?labels[?" + strconv.Quote(r.Label) + "].orValue(\"\")"
		or := func(is, otherwise string) string { return "(" + value + " != \"\" ? " + is + " : " + otherwise + ")" }

		return expressionOf(or(strconv.Quote(k.Group), group), or(`""`, kind), or(strconv.Quote(k.Namespace), namespace),
			or(value, name))
	}

	return expressionOf(group, kind, namespace, name)
}
