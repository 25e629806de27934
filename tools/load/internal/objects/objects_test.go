package objects_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBody(t *testing.T) {
	body, err := objects.Batch{Kind: objects.ConfigMaps, Namespace: "n", Prefix: "p"}.Body(7)
	require.NoError(t, err)
	require.JSONEq(t,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"n","name":"p-7"},"data":{"made":"to be measured"}}`, string(body))

	body, err = objects.Batch{
		Kind: objects.Websites, Namespace: "n", Prefix: "p", Labels: func(int) map[string]string {
			return map[string]string{"l": "v"}
		},
		Owner: &metav1.OwnerReference{APIVersion: "v1", Kind: "K", Name: "o", UID: "u"},
	}.Body(0)
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"example.clusterring.dev/v1alpha1","kind":"Website","metadata":{"namespace":"n","name":"p-0","labels":{"l":"v"},
		"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"o","uid":"u"}]},"spec":{"title":"Made to be measured"}}`, string(body))
}

func TestEach(t *testing.T) {
	var mu sync.Mutex

	seen, running, most := map[int]bool{}, 0, 0
	err := objects.Each(t.Context(), 100, 7, func(_ context.Context, i int) error {
		mu.Lock()
		seen[i] = true
		running++
		most = max(most, running)
		mu.Unlock()
		mu.Lock()
		running--
		mu.Unlock()

		return nil
	})
	require.NoError(t, err)
	require.Len(t, seen, 100)
	require.LessOrEqual(t, most, 7)

	var calls atomic.Int32

	broken := errors.New("broken")
	require.ErrorIs(t, objects.Each(t.Context(), 100, 1, func(context.Context, int) error {
		calls.Add(1)
		return broken
	}), broken)
	require.EqualValues(t, 1, calls.Load(), "none begins after an error")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, objects.Each(ended, 1, 1, func(context.Context, int) error { return nil }), context.Canceled)
	require.NoError(t, objects.Each(t.Context(), 0, 5, nil))
}

// server answers every request with the status and body, by HTTP/2, and remembers the last request.
func server(t *testing.T, status int, body string) (client *objects.Client, last func() (*http.Request, string)) {
	t.Helper()

	var (
		mu      sync.Mutex
		request *http.Request
		sent    []byte
	)

	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()

		request = r
		sent, _ = io.ReadAll(r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	client, err := objects.New(&rest.Config{
		Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, BearerToken: "secret",
	}, 2)
	require.NoError(t, err)
	t.Cleanup(client.Close)

	return client, func() (*http.Request, string) {
		mu.Lock()
		defer mu.Unlock()

		return request, string(sent)
	}
}

func TestDo(t *testing.T) {
	client, last := server(t, http.StatusOK, "answer")
	require.NoError(t, client.MergePatch(t.Context(), "/api/v1/x", map[string]any{}))

	request, body := last()
	require.Equal(t, 2, request.ProtoMajor)
	require.Equal(t, "PATCH /api/v1/x", request.Method+" "+request.URL.Path)
	require.Equal(t, "application/merge-patch+json", request.Header.Get("Content-Type"))
	require.Equal(t, "Bearer secret", request.Header.Get("Authorization"))
	require.Equal(t, "{}", body)

	var answer bytes.Buffer
	require.NoError(t, client.Do(t.Context(), objects.Request{Method: http.MethodGet, Path: "/x", Accept: "text/plain"},
		&answer))
	require.Equal(t, "answer", answer.String())

	request, _ = last()
	require.Equal(t, "text/plain", request.Header.Get("Accept"))
}

func TestErrorsOfTheServer(t *testing.T) {
	client, _ := server(t, http.StatusConflict,
		`{"kind":"Status","apiVersion":"v1","reason":"Conflict","code":409,"message":"changed since"}`)
	err := client.MergePatch(t.Context(), "/x", nil)
	require.True(t, apierrors.IsConflict(err))
	require.ErrorContains(t, err, "PATCH /x: changed since")

	client, _ = server(t, http.StatusNotFound, "what?")
	err = client.MergePatch(t.Context(), "/x", nil)
	require.ErrorContains(t, err, "status 404 Not Found: what?")
	require.NoError(t, client.Delete(t.Context(),
		objects.Batch{Kind: objects.ConfigMaps, Namespace: "n", Prefix: "p", Count: 3}), "gone already")
}
