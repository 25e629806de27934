package shardlease

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// label writes the state on the Lease if it says something else. It returns false if the Lease is no longer what was judged;
// otherwise judged.lease is as the API server has it.
//
// The patch depends on no resourceVersion: a renewal in between is no reason to fail, and brings the next state along.
func (r *Reconciler) label(ctx context.Context, judged *judgement) (unchanged bool, err error) {
	before, uid := judged.lease.Labels[contract.LabelState], judged.lease.UID
	if before == string(judged.State) {
		return true, nil
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{contract.LabelState: string(judged.State)},
	}})
	if err != nil {
		return false, fmt.Errorf("encode the state of a Lease: %w", err)
	}

	err = r.Client.Patch(ctx, judged.lease, client.RawPatch(types.MergePatchType, patch))
	if tooLate(err) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("label Lease %s as %s: %w", client.ObjectKeyFromObject(judged.lease), judged.State, err)
	}

	ctrllog.FromContext(ctx).Info("Shard changed state",
		"ring", judged.ring(), "from", before, "to", judged.State, "unchangedFor", judged.seen.Age.String())

	return judged.lease.UID == uid && lease.RecordOf(judged.lease).Equal(judged.snapshot.Record), nil
}
