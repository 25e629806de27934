package webhook

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// The Pod of a writer is known only from a token that is bound to one Pod.
func TestWriter(t *testing.T) {
	const key = "authentication.kubernetes.io/pod-name"

	for what, tc := range map[string]struct {
		userInfo string
		want     types.NamespacedName
	}{
		"a bound token": {`{"username":"system:serviceaccount:ns:sa","groups":["g"],"extra":{"x":["y"],"` + key +
			`":["pod-0"]}}`, types.NamespacedName{Namespace: "ns", Name: "pod-0"}},
		"a token that is not bound": {`{"username":"system:serviceaccount:ns:sa","extra":{"x":["y"]}}`,
			types.NamespacedName{}},
		"without extra":      {`{"username":"system:serviceaccount:ns:sa"}`, types.NamespacedName{}},
		"extra of null":      {`{"username":"system:serviceaccount:ns:sa","extra":null}`, types.NamespacedName{}},
		"no service account": {`{"username":"jane","extra":{"` + key + `":["pod-0"]}}`, types.NamespacedName{}},
		"several Pods": {`{"username":"system:serviceaccount:ns:sa","extra":{"` + key + `":["pod-0","pod-1"]}}`,
			types.NamespacedName{}},
		"no Pod": {`{"username":"system:serviceaccount:ns:sa","extra":{"` + key + `":[]}}`,
			types.NamespacedName{}},
		"a Pod of another type": {`{"username":"system:serviceaccount:ns:sa","extra":{"` + key + `":"pod-0"}}`,
			types.NamespacedName{}},
		"two lists": {`{"username":"system:serviceaccount:ns:sa","extra":{"` + key + `":["pod-0"],"` + key +
			`":["pod-1"]}}`, types.NamespacedName{}},
		"a key that differs by case": {`{"username":"system:serviceaccount:ns:sa","extra":{"` + strings.ToUpper(key) +
			`":["pod-0"]}}`, types.NamespacedName{}},
	} {
		t.Run(what, func(t *testing.T) {
			body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"request":{"uid":"1","userInfo":%s,`+
				`"object":{"metadata":{"name":"x","ownerReferences":[{}]}}}}`, reviewVersion, reviewKind, tc.userInfo)
			_, req, err := decode("ring", []byte(body))
			require.NoError(t, err)
			require.Equal(t, tc.want, req.Writer)
			require.NotNil(t, req.Object)
		})
	}
}
