package explain

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// object returns the findings about the object itself. The rings named covering shard it.
func object(f *Facts, covering []string) []*pb.Finding {
	var all []*pb.Finding

	add := func(severity pb.Severity, reason Reason, message, advice string) {
		all = append(all, &pb.Finding{Severity: severity, Reason: string(reason), Message: message, Advice: advice})
	}

	if len(f.Rings) == 0 {
		add(Info, ReasonNotSharded, notSharded(f), notShardedAdvice(f))
	}

	switch resource := f.Object.Resource.GroupResource(); {
	case f.Object.Meta != nil:
	case len(f.Rings) == 0:
		add(Info, ReasonObjectForbidden, fmt.Sprintf("The server may not read %s, so it does not know whether the object exists "+
			"or has labels of rings.", resource), "")
	default:
		add(Warning, ReasonObjectForbidden, fmt.Sprintf("The server may not read %s, so it does not know where the object is or whether it exists.", resource),
			"Grant get and list on it by a ClusterRole with the label "+contract.LabelAggregateToRingQuery+`: "true".`)
	}

	if f.Object.Meta == nil {
		return all
	}

	if at := f.Object.Meta.DeletionTimestamp; !at.IsZero() {
		add(Info, ReasonObjectDeleting, deleting(f, at), "")
	}

	for _, label := range unknownLabels(f) {
		add(Warning, ReasonUnknownRingLabel, fmt.Sprintf("It has the label %s=%s of a ring that does not exist: every service ignores it, and none removes it. "+
			"It may come from a backup or from a copy of another object.", label, f.Object.Meta.Labels[label]),
			"Remove it: "+f.Object.labelCommand(label+"-"))
	}

	if len(covering) > 1 {
		add(Info, ReasonSeveralRings, fmt.Sprintf("The rings %s shard it, each with its own label. The rings are independent, "+
			"and one shard of each ring works on it.", list(covering)), "")
	}

	return all
}

func notSharded(f *Facts) string {
	if len(f.Known) == 0 {
		return "It is not sharded: there is no ring. Its controller, if any, is not sharded."
	}

	return fmt.Sprintf("It is not sharded: no ring lists %s. Its controller, if any, is not sharded.", f.Object.Resource.GroupResource())
}

func notShardedAdvice(f *Facts) string {
	if len(f.Controlling) == 0 {
		return ""
	}

	controller := ""
	if ref := metav1.GetControllerOfNoCopy(f.Object.metadata()); ref != nil {
		controller = " by " + ref.Kind + " " + ref.Name
	}

	return fmt.Sprintf("It is controlled%s, and the kind of its controller is sharded by %s. If each shard should watch only its own objects, add %s to the "+
		"controlledResources of the ring.", controller, list(f.Controlling), f.Object.Resource.GroupResource())
}

func deleting(f *Facts, at *metav1.Time) string {
	finalizers := slices.Clone(f.Object.Meta.Finalizers)
	for i := range finalizers {
		finalizers[i] = fmt.Sprintf("%q", finalizers[i])
	}

	if len(finalizers) == 0 {
		return fmt.Sprintf("It was deleted %s ago and is about to disappear.", span(f.Now.Sub(at.Time)))
	}

	return fmt.Sprintf("It was deleted %s ago and stays until its finalizers %s are removed. "+
		"An object in deletion has a shard like any other object, and that shard must remove the finalizers of its controller.",
		span(f.Now.Sub(at.Time)), list(finalizers))
}
