// Package shardtest tests a sharded controller without the services: it creates a shard that needs no Lease, assigns
// and drains objects as the services would, and checks what the shard has done.
//
// It reads and writes through the given client, which can be a client of a test API server or a fake one.
//
//	ring := shardtest.New(t, c, "example")
//	s := ring.Shard("shard-0")
//	reconciler := s.Reconciler(c, &v1.Website{}, inner)
//
//	ring.Assign(site, "shard-0")                  // as if admission had assigned it
//	_, err := reconciler.Reconcile(ctx, request)  // inner is called
//	ring.Drain(site)                              // ask for its release
//	_, err = reconciler.Reconcile(ctx, request)   // inner is not called
//	ring.RequireReleased(site)                    // it was released
package shardtest

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// Ring replaces the services of one ring in one test. Its methods fail the test if they cannot do their job; like
// everything that fails a test, they must be called from the goroutine of the test.
type Ring struct {
	t    testing.TB
	c    client.Client
	name string
}

// New returns the ring of the given name. The client accesses its objects.
func New(t testing.TB, c client.Client, ring string) *Ring {
	t.Helper()

	return &Ring{t: t, c: c, name: ring}
}

func (r *Ring) keys() contract.LabelKeys { return contract.LabelKeysOf(r.name, "") }

// Shard returns a shard of the ring whose reconcilers work without a Lease. Do not use it with a manager.
func (r *Ring) Shard(name string) *shard.Shard {
	r.t.Helper()

	s, err := shard.Without(within.Shard{Ring: r.name, Name: name})
	if err != nil {
		r.t.Fatalf("create shard %q of ring %q: %v", name, r.name, err)
	}

	return s
}

// Labels returns the labels of an object that is assigned to the shard, for objects that do not exist yet.
func (r *Ring) Labels(shardName string) map[string]string {
	return map[string]string{r.keys().Shard: shardName}
}

// Assign assigns an existing object to the shard, without a drain, and updates obj.
func (r *Ring) Assign(obj client.Object, shardName string) {
	r.t.Helper()
	r.label(obj, map[string]any{r.keys().Shard: shardName, r.keys().Drain: nil})
}

// Drain asks the object's shard to release it, and updates obj. In a cluster, an assigner assigns it to another shard
// in the same write, or the rebalancer does so afterwards.
func (r *Ring) Drain(obj client.Object) {
	r.t.Helper()
	r.label(obj, map[string]any{r.keys().Drain: contract.DrainValue})
}

// WithdrawDrain withdraws a drain, and updates obj.
func (r *Ring) WithdrawDrain(obj client.Object) {
	r.t.Helper()
	r.label(obj, map[string]any{r.keys().Drain: nil})
}

// RequireReleased reads the object into obj and fails the test unless it has neither the shard label nor the drain
// label.
func (r *Ring) RequireReleased(obj client.Object) {
	r.t.Helper()

	if owner, drain := r.read(obj); owner != "" || drain {
		r.t.Fatalf("%s is not released: it belongs to shard %q, draining: %t", client.ObjectKeyFromObject(obj), owner, drain)
	}
}

// RequireOwned reads the object into obj and fails the test unless it belongs to the shard, draining or not.
func (r *Ring) RequireOwned(obj client.Object, shardName string) {
	r.t.Helper()

	if owner, _ := r.read(obj); owner != shardName {
		r.t.Fatalf("%s belongs to shard %q, want %q", client.ObjectKeyFromObject(obj), owner, shardName)
	}
}

func (r *Ring) read(obj client.Object) (owner string, drain bool) {
	r.t.Helper()

	if err := r.c.Get(r.t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		r.t.Fatalf("read %s: %v", client.ObjectKeyFromObject(obj), err)
	}

	_, drain = obj.GetLabels()[r.keys().Drain]

	return obj.GetLabels()[r.keys().Shard], drain
}

// label sets labels of an existing object; nil removes one.
func (r *Ring) label(obj client.Object, labels map[string]any) {
	r.t.Helper()

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err == nil {
		err = r.c.Patch(r.t.Context(), obj, client.RawPatch(types.MergePatchType, patch))
	}

	if err != nil {
		r.t.Fatalf("label %s: %v", client.ObjectKeyFromObject(obj), err)
	}
}
