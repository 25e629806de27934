package parameters

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// The keys of the parameter about shards; the name of a ring follows.
const (
	prefixNamespaces = "namespaces." // of every ring: spec.shardNamespaces, one per line; empty for all namespaces
	prefixUnbound    = "unbound."    // of rings whose shards have tokens that are bound to no Pod
	prefixNames      = "names."      // of rings with spec.shardNames: these, one per line
	prefixLabel      = "label."      // of rings with spec.shardLabel: it
	prefixEmbedded   = "embedded."   // of rings whose shards elect the sharder
	// of rings with a fence: the user names of the service accounts of shards, one per line
	prefixAccounts = "accounts."
)

// The keys of the parameter about itself: it contains all rings whose names are not less than the one, and less than
// the other. Absent, there is no such limit.
const (
	keyFrom = "from"
	keyTo   = "to"
)

// maxPage is how many bytes a parameter has at most, in keys and values. The largest ring has 76 KB. The API server
// also stores which keys the lease monitor has written, and accepts objects of 1.5 MiB.
const maxPage = 256 << 10

// writePages writes the parameters of the policies that decide who may write the Leases of shards, and that webhooks
// are only those of rings: deploy/base/guard/shard-leases.yaml and services.yaml. Nearly always, there is one
// parameter: a page of all rings.
//
// # Invariants
//
//  1. A ring that has been described, and still exists, is in a parameter at every moment.
//  2. Every name is within the limits of a parameter, and every parameter contains all rings within its limits.
//     Therefore, a policy that is evaluated for each parameter refuses the name of a ring that does not exist.
//  3. No parameter is larger than [maxPage], however many rings there are.
//
// The name of a parameter follows from its content, so nothing is updated: new parameters are created before old ones
// are deleted.
//
// # Rejected alternative
//
// With a parameter for each ring, a renewal of a Lease costs the API server 45 µs for each ring, because a policy is
// evaluated for every parameter. It costs 7 µs for each ring in one parameter.
func (r *Reconciler) writePages(ctx context.Context) (reconcile.Result, error) {
	rings := &v1alpha1.ClusterRingList{}
	if err := r.Client.List(ctx, rings, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list rings: %w", err)
	}

	var errs []error

	wanted := map[string]bool{}

	for i, page := range Pages(rings.Items) {
		wanted[page.Name] = true
		errs = append(errs, r.write(ctx, contract.ShardsParameter+"/"+strconv.Itoa(i), page))
	}

	if errors.Join(errs...) != nil {
		return kit.Later(errs...) // what the others describe is not described yet
	}

	return reconcile.Result{}, r.removeOthers(ctx, wanted)
}

// removeOthers deletes all parameters about shards but the given ones.
func (r *Reconciler) removeOthers(ctx context.Context, wanted map[string]bool) error {
	have := &v1alpha1.PolicyParameterList{}
	if err := r.Client.List(ctx, have, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list PolicyParameters: %w", err)
	}

	for i := range have.Items {
		if parameter := &have.Items[i]; aboutShards(parameter) && !wanted[parameter.Name] {
			if err := r.delete(ctx, parameter); err != nil {
				return err
			}
		}
	}

	return nil
}

// aboutShards reports whether an object has the name of a parameter about shards: one that follows from its content, or
// that of the only one of former versions.
func aboutShards(obj client.Object) bool {
	return strings.HasPrefix(obj.GetName(), contract.ShardsParameter)
}

// Pages returns the parameters that describe the rings, none if there is no ring. It changes no ring.
func Pages(rings []v1alpha1.ClusterRing) []*v1alpha1.PolicyParameter {
	sorted := make([]*v1alpha1.ClusterRing, 0, len(rings))
	for i := range rings {
		sorted = append(sorted, &rings[i])
	}

	slices.SortFunc(sorted, func(a, b *v1alpha1.ClusterRing) int { return cmp.Compare(a.Name, b.Name) })

	var (
		pages []map[string]string
		size  int
	)

	for i, ring := range sorted {
		data := described(ring)
		bytes := sizeOf(data)

		switch size += bytes; {
		case i == 0:
			pages = append(pages, data)
		case size > maxPage:
			pages[len(pages)-1][keyTo] = ring.Name
			data[keyFrom] = ring.Name
			pages, size = append(pages, data), bytes
		default:
			maps.Copy(pages[len(pages)-1], data)
		}
	}

	out := make([]*v1alpha1.PolicyParameter, 0, len(pages))
	for _, data := range pages {
		out = append(out,
			&v1alpha1.PolicyParameter{ObjectMeta: metav1.ObjectMeta{Name: contract.ShardsParameter + "-" + digest(data)},
				Data: data})
	}

	return out
}

// described returns what the policies must know of a ring.
func described(ring *v1alpha1.ClusterRing) map[string]string {
	data := map[string]string{prefixNamespaces + ring.Name: strings.Join(ring.Spec.ShardNamespaces, "\n")}

	for prefix, value := range map[string]string{
		prefixNames:    strings.Join(ring.Spec.ShardNames, "\n"),
		prefixLabel:    ring.Spec.ShardLabel,
		prefixAccounts: strings.Join(clusterring.FenceAccounts(ring), "\n"),
	} {
		if value != "" {
			data[prefix+ring.Name] = value
		}
	}

	if ring.Annotations[contract.AnnotationUnboundShards] == "true" {
		data[prefixUnbound+ring.Name] = "true"
	}

	if ring.Spec.Sharder == v1alpha1.SharderEmbedded {
		data[prefixEmbedded+ring.Name] = "true"
	}

	return data
}

func sizeOf(data map[string]string) (size int) {
	for key, value := range data {
		size += len(key) + len(value)
	}

	return size
}

// digest returns 16 hexadecimal digits that follow from the data.
func digest(data map[string]string) string {
	hash := sha256.New()

	for _, key := range slices.Sorted(maps.Keys(data)) {
		_, _ = fmt.Fprintf(hash, "%q=%q\n", key, data[key]) // a hash returns no errors
	}

	return hex.EncodeToString(hash.Sum(nil)[:8])
}
