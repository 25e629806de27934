package objects_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client asks for metadata alone, says what is wrong, and takes what is gone for deleted.
func TestClient(t *testing.T) {
	var request *http.Request

	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request = r

		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,`+
			`"message":"no namespace"}`)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	client, err := objects.New(&rest.Config{
		Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, BearerToken: "secret",
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)

	_, err = client.Post(t.Context(), objects.Batch{Kind: objects.ConfigMaps, Namespace: "n", Prefix: "p"}.Ref(0),
		map[string]any{}, metav1.DryRunAll)
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, "create ConfigMap p-0: no namespace")
	require.Equal(t, 2, request.ProtoMajor)
	require.Equal(t, "POST /api/v1/namespaces/n/configmaps?dryRun=All", request.Method+" "+request.URL.String())
	require.Contains(t, request.Header.Get("Accept"), "as=PartialObjectMetadata;")
	require.Equal(t, "Bearer secret", request.Header.Get("Authorization"))

	err = client.MergePatch(t.Context(),
		objects.Ref{Kind: objects.Websites, Namespace: "n", Name: "x", Subresource: "status"}, nil)
	require.ErrorContains(t, err, "patch Website x: no namespace")
	require.Equal(t, "/apis/example.clusterring.dev/v1alpha1/namespaces/n/websites/x/status", request.URL.Path)
	require.NoError(t, client.Delete(t.Context(),
		objects.Batch{Kind: objects.ConfigMaps, Namespace: "n", Prefix: "p", Count: 1}), "gone already")
}
