package key

import (
	"fmt"
	"strings"
)

// CELExpression returns a Kubernetes CEL expression of type int that computes [Key.Hash]. The arguments are CEL expressions of
// type string for the parts of the key, for example "request.kind.group" or "object.metadata.name".
//
// It is rendered from the same constants that Go uses. It needs libraries that every API server has had since Kubernetes 1.33
// (two-variable comprehensions), and evaluates each argument once. Lists of one element and map replace the local variables that
// CEL does not have.
func CELExpression(group, kind, namespace, name string) string {
	var m strings.Builder

	for i, n := range multipliers {
		if i > 0 {
			m.WriteByte(',')
		}
		fmt.Fprint(&m, n)
	}

	chars := fmt.Sprintf("((%s) + '/' + (%s) + '/' + (%s) + '/' + (%s)).split('')", group, kind, namespace, name)
	total := fmt.Sprintf("[[%s]].map(m, chars.transformList(i, c, ('%s'.indexOf(c) + 1) * m[i %% %d]).sum())[0]",
		m.String(), alphabet, positions)

	return fmt.Sprintf("[%[1]s]"+
		".map(chars, (%[2]s + size(chars) * %[3]d + %[4]d) %% %[7]d)"+
		".map(x, [x * x %% %[7]d].map(square, square * square %% %[7]d * x %% %[7]d)[0])"+
		".map(y, (y * %[5]d + %[6]d) %% %[7]d)[0]",
		chars, total, lengthMultiplier, offset, finalMultiplier, finalOffset, Prime)
}
