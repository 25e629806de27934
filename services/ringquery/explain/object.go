package explain

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// object says what is to be said about the object itself.
func object(f *Facts) []*pb.Finding {
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
		add(Info, ReasonObjectForbidden, fmt.Sprintf("The server may not read %s, so it does not know whether the object exists, "+
			"nor whether it carries labels of rings all the same.", resource), "")
	default:
		add(Warning, ReasonObjectForbidden, fmt.Sprintf("The server may not read %s, so it does not know where the object is, nor whether it exists.", resource),
			"Grant get and list on it by a ClusterRole with the label "+v1alpha1.LabelAggregateToRingQuery+`: "true".`)
	}

	if f.Object.Meta == nil {
		return all
	}

	if at := f.Object.Meta.DeletionTimestamp; !at.IsZero() {
		add(Info, ReasonObjectDeleting, deleting(f, at), "")
	}

	for _, label := range unknownLabels(f) {
		add(Warning, ReasonUnknownRingLabel, fmt.Sprintf("It carries the label %s=%s of a ring that does not exist: no service looks at it, or removes it. "+
			"It may have come from a backup, or from a copy of another object.", label, f.Object.Meta.Labels[label]),
			"Remove it: "+f.Object.labelCommand(label+"-"))
	}

	if covering := covering(f); len(covering) > 1 {
		add(Info, ReasonSeveralRings, fmt.Sprintf("The rings %s shard it, each with a label of its own: they do not know of each other, "+
			"and one shard of each works on it.", list(covering)), "")
	}

	return all
}

func notSharded(f *Facts) string {
	if len(f.Known) == 0 {
		return "It is not sharded: there is no ring. Whatever controller handles it does so without any."
	}

	return fmt.Sprintf("It is not sharded: no ring lists %s. Whatever controller handles it does so without any.", f.Object.Resource.GroupResource())
}

func notShardedAdvice(f *Facts) string {
	if len(f.Controlling) == 0 {
		return ""
	}

	controller := ""
	if f.Object.Meta != nil {
		if ref := metav1.GetControllerOfNoCopy(f.Object.Meta); ref != nil {
			controller = " by " + ref.Kind + " " + ref.Name
		}
	}

	return fmt.Sprintf("It is controlled%s, of a kind that is sharded by %s. If the shards are to watch their own only, add %s to the "+
		"controlledResources there.", controller, list(f.Controlling), f.Object.Resource.GroupResource())
}

func deleting(f *Facts, at *metav1.Time) string {
	finalizers := slices.Clone(f.Object.Meta.Finalizers)
	for i := range finalizers {
		finalizers[i] = fmt.Sprintf("%q", finalizers[i])
	}

	if len(finalizers) == 0 {
		return fmt.Sprintf("It has been deleted %s ago and will be gone in a moment.", span(f.Now.Sub(at.Time)))
	}

	return fmt.Sprintf("It was deleted %s ago and stays until those who set its finalizers %s have removed them. "+
		"An object in deletion has a shard like any other, and that shard has to see to the finalizers of its controller.",
		span(f.Now.Sub(at.Time)), list(finalizers))
}

// covering returns the names of the rings that list the object's resource and do not leave the object out.
func covering(f *Facts) []string {
	var names []string
	for i := range f.Rings {
		if newRingCase(f, &f.Rings[i]).in.Belongs {
			names = append(names, f.Rings[i].Name)
		}
	}

	return names
}
