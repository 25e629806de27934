package feed

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

const ring = "example"

var keys = contract.LabelKeysOf(ring, "")

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

type namespace struct {
	*testing.T
	plain client.Client
	ns    string
	c     *Client
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()

	plane := localplane.Shared(t)

	httpClient, err := rest.HTTPClientFor(plane.Config)
	require.NoError(t, err)
	api, err := Connect(plane.Config, httpClient, Bounds{PerSecond: 10000, AtOnce: 64})
	require.NoError(t, err)

	return &namespace{T: t, plain: plane.Client, ns: plane.Namespace(t), c: NewClient(api, keys)}
}

func (w *namespace) create(name string, labels map[string]string) *corev1.ConfigMap {
	w.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: labels}}
	require.NoError(w, w.plain.Create(w.Context(), cm))

	return cm
}

func (w *namespace) a() ID { return ID{GVR: configMaps, Namespace: w.ns, Name: "a"} }

func TestLabelChangesJustTheTwoLabels(t *testing.T) {
	w := newNamespace(t)
	cm := w.create("a", map[string]string{"mine": "stays"})

	o, err := w.c.Get(t.Context(), w.a())
	require.NoError(t, err)
	require.Equal(t, Object{ID: w.a(), UID: cm.UID, ResourceVersion: cm.ResourceVersion}, o)

	for _, step := range []struct {
		to   Labels
		want map[string]string
	}{
		{Labels{Shard: "one"}, map[string]string{"mine": "stays", contract.ShardLabel(ring): "one"}},
		{Labels{Shard: "one", Drain: contract.DrainValue}, map[string]string{
			"mine": "stays", contract.ShardLabel(ring): "one", contract.DrainLabel(ring): "true",
		}},
		{Labels{Shard: "two"}, map[string]string{"mine": "stays", contract.ShardLabel(ring): "two"}},
		{Labels{}, map[string]string{"mine": "stays"}},
	} {
		written, err := w.c.Label(t.Context(), o, step.to)
		require.NoError(t, err)
		o, err = w.c.Get(t.Context(), w.a())
		require.NoError(t, err)
		require.Equal(t, o, written, "the answer should be the current object")
		require.NoError(t, w.plain.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
		require.Equal(t, step.want, cm.Labels)
		require.Equal(t, cm.ResourceVersion, o.ResourceVersion)
		require.Equal(t, step.want[contract.ShardLabel(ring)], o.Shard)
		require.Equal(t, step.want[contract.ShardLabel(ring)] != "", o.Labelled)
		require.Equal(t, step.want[contract.DrainLabel(ring)] != "", o.Draining)
	}
}

func TestLabelFailsIfTheObjectIsAnother(t *testing.T) {
	w := newNamespace(t)
	cm := w.create("a", nil)

	old, err := w.c.Get(t.Context(), w.a())
	require.NoError(t, err)

	cm.Data = map[string]string{"changed": "meanwhile"}
	require.NoError(t, w.plain.Update(t.Context(), cm))

	_, err = w.c.Label(t.Context(), old, Labels{Shard: "one"})
	require.True(t, apierrors.IsConflict(err), "changed: %v", err)

	require.NoError(t, w.plain.Delete(t.Context(), cm))

	_, err = w.c.Label(t.Context(), old, Labels{Shard: "one"})
	require.True(t, apierrors.IsNotFound(err), "gone: %v", err)

	w.create("a", nil)

	_, err = w.c.Label(t.Context(), old, Labels{Shard: "one"})
	require.True(t, apierrors.IsConflict(err), "another of the same name: %v", err)
}

func TestPagesHoldOnePageAtATime(t *testing.T) {
	w := newNamespace(t)

	for i := range PageSize + 1 {
		w.create(fmt.Sprintf("cm-%d", i), map[string]string{"of": "many"})
	}

	w.create("other", nil)

	var (
		server = &listed{Server: w.c.server}
		n      = 0
	)

	scope := Scope{GVR: configMaps, Namespace: w.ns, Selector: "of=many"}
	version, err := NewClient(server, keys).pages(t.Context(), scope, func(Object) error {
		n++
		require.LessOrEqual(t, server.items, (n+PageSize-1)/PageSize*PageSize, "the next page should come when this one is over")

		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, version)
	require.Equal(t, PageSize+1, n)
	require.Equal(t, 2, server.pages, "a list at resource version 0 would come in one piece")

	w.streams(Scope{GVR: configMaps, Namespace: w.ns, Selector: "of=many"}, PageSize+1)
}

// listed is an API server that counts the pages and the items of its lists.
type listed struct {
	Server

	pages, items int
}

func (l *listed) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, o metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	list, err := l.Server.List(ctx, gvr, namespace, o)
	if err == nil {
		l.pages, l.items = l.pages+1, l.items+len(list.Items)
	}

	return list, err
}

// Pages grow in long lists, because each page costs the API server more than its objects.
func TestPagesGrow(t *testing.T) {
	p := &pages{left: 7}
	_, err := NewClient(p, keys).pages(t.Context(), Scope{GVR: configMaps}, func(Object) error { return nil })
	require.NoError(t, err)
	require.Equal(t, []int64{PageSize, PageSize, PageSize, PageSize, PageSize, largePage, largePage}, p.asked)
}

// pages is an API server with the given number of pages left, whatever their size.
type pages struct {
	Server

	left  int
	asked []int64
}

func (p *pages) List(_ context.Context, _ schema.GroupVersionResource, _ string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	if p.asked = append(p.asked, o.Limit); len(p.asked) < p.left {
		list.Continue = strconv.Itoa(len(p.asked))
	}

	return list, nil
}

func TestPagesEndWithTheErrorOfTheReader(t *testing.T) {
	w := newNamespace(t)
	w.create("a", nil)

	_, err := w.c.pages(t.Context(), Scope{GVR: configMaps, Namespace: w.ns}, func(Object) error { return context.Canceled })
	require.ErrorIs(t, err, context.Canceled)

	_, err = w.c.pages(t.Context(), Scope{GVR: configMaps, Selector: "not a selector"}, nil)
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
}
