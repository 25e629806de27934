package shard

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// A controller with an informer for each namespace has a handler for each, and each owner is looked up where its namespace is read.
func TestOwnersAreReadInTheirNamespace(t *testing.T) {
	s, live, _ := unplugged(t)

	worked := map[string]int{}
	mine := map[string]string{contract.ShardLabel("ring"): "shard-0"}
	work := map[string]func(context.Context, types.NamespacedName) (time.Duration, error){}

	for _, namespace := range []string{"a", "b"} {
		owners, children := cache.NewStore(cache.MetaNamespaceKeyFunc), cache.NewStore(cache.MetaNamespaceKeyFunc)
		s.Handler(Resource{
			Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
			Namespaced: true, Namespace: namespace, Store: owners, Client: live,
		}, nil)
		work[namespace] = s.Handler(Resource{
			Kind: corev1.SchemeGroupVersion.WithKind("Secret"), Resource: corev1.SchemeGroupVersion.WithResource("secrets"),
			Namespaced: true, Namespace: namespace, Store: children, Client: live,
		}, func(_ context.Context, name types.NamespacedName) error {
			worked[name.Namespace]++
			return nil
		})

		require.NoError(t, owners.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner", ResourceVersion: "5", Labels: mine}}))
		require.NoError(t, children.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "child", ResourceVersion: "5", Labels: mine,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", Controller: new(true)}},
		}}))
	}

	for namespace, handle := range work {
		after, err := handle(t.Context(), types.NamespacedName{Namespace: namespace, Name: "child"})
		require.NoError(t, err)
		require.Zero(t, after, namespace)
	}

	require.Equal(t, map[string]int{"a": 1, "b": 1}, worked)
}

// A main object that an object of another shard controls waits for it, and the log says so, unless its kind is declared as main.
func TestMainObjectsFollowNoController(t *testing.T) {
	s, live, clk := unplugged(t)

	stores := map[string]cache.Store{}
	worked := map[string]int{}
	work := map[string]func(context.Context, types.NamespacedName) (time.Duration, error){}

	for _, kind := range []string{"CronJob", "Job", "Pod"} { // each controls the next one
		stores[kind] = cache.NewStore(cache.MetaNamespaceKeyFunc)
		work[kind] = s.Handler(Resource{
			Kind: batchv1.SchemeGroupVersion.WithKind(kind), Resource: batchv1.SchemeGroupVersion.WithResource(strings.ToLower(kind) + "s"),
			Namespaced: true, Store: stores[kind], Client: live,
		}, func(context.Context, types.NamespacedName) error {
			worked[kind]++
			return nil
		})
	}

	for kind, owner := range map[string]string{"Job": "CronJob", "Pod": "Job"} {
		require.NoError(t, stores[kind].Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: kind, ResourceVersion: "5", Labels: map[string]string{contract.ShardLabel("ring"): "shard-0"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: owner, Name: owner, Controller: new(true)}},
		}}))
	}

	var logged []string

	ctx := logr.NewContext(t.Context(), funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}))
	reconcile := func(kind string) time.Duration {
		after, err := work[kind](ctx, types.NamespacedName{Namespace: "n", Name: kind})
		require.NoError(t, err)

		return after
	}

	require.Equal(t, recheck, reconcile("Job"))
	require.Empty(t, logged)
	clk.Step(longWait)
	require.Equal(t, recheck, reconcile("Job"))
	require.Len(t, logged, 1)
	require.Contains(t, logged[0], `"controllerKind"="CronJob" "controller"={"name"="CronJob" "namespace"="n"} "controlledKind"="Job"`)
	require.Equal(t, recheck, reconcile("Job"))
	require.Len(t, logged, 1)

	require.Equal(t, recheck, reconcile("Pod"))
	clk.Step(longWait)
	require.Equal(t, recheck, reconcile("Pod"))
	require.Len(t, logged, 2)
	require.Contains(t, logged[1], `"controllerKind"="CronJob" "controller"={"name"="CronJob" "namespace"="n"} "controlledKind"="Job"`)

	// A controller of this shard that is drained says nothing about main resources.
	drained := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: "CronJob", ResourceVersion: "5",
		Labels: map[string]string{contract.ShardLabel("ring"): "shard-0", contract.DrainLabel("ring"): "true"},
	}}
	require.NoError(t, stores["CronJob"].Add(drained))
	s.guard.enter(objectKey{schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}, types.NamespacedName{Namespace: "n", Name: "CronJob"}})
	require.Equal(t, recheck, reconcile("Pod"))
	clk.Step(longWait)
	require.Equal(t, recheck, reconcile("Pod"))
	require.Len(t, logged, 2)
	require.NoError(t, stores["CronJob"].Delete(drained))

	s.kind(schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}, "n").main = true
	require.Zero(t, reconcile("Job"))
	require.Zero(t, reconcile("Pod"), "it follows the Job, which follows nothing")
	require.Equal(t, map[string]int{"Job": 1, "Pod": 1}, worked)
}
