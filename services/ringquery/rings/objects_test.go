package rings

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

var (
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	unknown    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "foos"}
)

func newObjects(t *testing.T, config *rest.Config) *Objects {
	t.Helper()

	web, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(web.CloseIdleConnections)
	r, err := NewObjects(config, web)
	require.NoError(t, err)

	return r
}

func TestFailures(t *testing.T) {
	plane := localplane.Shared(t)
	admin := newObjects(t, plane.Config)
	config := rest.CopyConfig(plane.Config)
	config.Impersonate.UserName = "nobody"
	somebody := newObjects(t, config)
	config = rest.AnonymousClientConfig(plane.Config)
	config.BearerToken = "no-such-token"
	unknownCaller := newObjects(t, config)
	nowhere := newObjects(t, &rest.Config{Host: "https://127.0.0.1:1"})
	id := types.NamespacedName{Namespace: plane.Namespace(t), Name: "no-such-object"}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	get := func(r *Objects, gvr schema.GroupVersionResource) error {
		_, err := r.Get(t.Context(), gvr, id)
		return err
	}
	list := func(r *Objects, gvr schema.GroupVersionResource, options metav1.ListOptions) error {
		_, err := r.List(t.Context(), gvr, "", options)
		return err
	}

	for name, c := range map[string]struct{ err, want error }{
		"get what is not there":   {get(admin, configMaps), ErrNotFound},
		"get what is not served":  {get(admin, unknown), ErrNotServed},
		"get what is forbidden":   {get(somebody, secrets), ErrForbidden},
		"get without credentials": {get(unknownCaller, secrets), ErrForbidden},
		"get from nobody":         {get(nowhere, configMaps), ErrUnavailable},
		"list what is forbidden":  {list(somebody, secrets, metav1.ListOptions{}), ErrForbidden},
		"list what cannot be listed": {list(admin, schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1",
			Resource: "subjectaccessreviews"}, metav1.ListOptions{}), ErrNotServed},
		"list with a forged token": {list(admin, configMaps, metav1.ListOptions{Limit: 1, Continue: "forged"}),
			ErrRejected},

		// A healthy API server does not return these on demand.
		"expired": {classify(t.Context(), "list", apierrors.NewResourceExpired("too old")), ErrExpired},
		"gone": {classify(t.Context(), "list", apierrors.NewGenericServerResponse(http.StatusGone, "list",
			configMaps.GroupResource(), "", "gone", 0, false)), ErrExpired},
		"too many": {classify(t.Context(), "list", apierrors.NewTooManyRequests("slowly", 1)), ErrUnavailable},
		"no etcd":  {classify(t.Context(), "list", apierrors.NewInternalError(errors.New("no etcd"))), ErrUnavailable},
		"no such path": {classify(t.Context(), "get", apierrors.NewGenericServerResponse(http.StatusNotFound, "get",
			configMaps.GroupResource(), "a", "404 page not found", 0, true)), ErrNotServed},
	} {
		require.ErrorIs(t, c.err, c.want, name)
	}

	_, err := admin.Get(cancelled, configMaps, id)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrUnavailable)
}
