package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// span writes a time as a person would, to the second or coarser.
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)

	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 10*time.Minute && d%time.Minute != 0:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}

// list writes names with commas and an "and".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}

	last := len(names) - 1

	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// labelText writes labels as kubectl does.
func labelText(set map[string]string) string {
	if len(set) == 0 {
		return "none"
	}

	return strings.ReplaceAll(labels.Set(set).String(), ",", ", ")
}

// labelCommand is how a person changes a label of the object; "key-" removes it.
func (o *Object) labelCommand(change string) string {
	scope := ""
	if o.Namespace != "" {
		scope = " -n " + o.Namespace
	}

	return fmt.Sprintf("kubectl%s label %s %s %s", scope, o.Resource.GroupResource(), o.Name, change)
}

// statusCommand is how a person sees what the services say of a ring.
func statusCommand(ring string) string {
	return "kubectl describe clusterring " + ring
}

// rebalancerAdvice says how to see what the rebalancer does.
func (c *ringCase) rebalancerAdvice() string {
	return "If that takes more than some seconds, see what the rebalancer says of the ring, and whether it runs: " + statusCommand(c.name) +
		"; kubectl -n " + v1alpha1.SystemNamespace + " get pods -l app.kubernetes.io/name=rebalancer"
}

// unknownLabels returns the object's labels of rings that do not exist, sorted.
func unknownLabels(f *Facts) []string {
	if f.Known == nil {
		return nil
	}

	var unknown []string

	for label := range f.Object.Meta.Labels {
		ours := strings.HasPrefix(label, v1alpha1.LabelShardPrefix) || strings.HasPrefix(label, v1alpha1.LabelDrainPrefix)
		known := slices.ContainsFunc(f.Known, func(ring string) bool {
			return label == v1alpha1.ShardLabel(ring) || label == v1alpha1.DrainLabel(ring)
		})

		if ours && !known {
			unknown = append(unknown, label)
		}
	}

	slices.Sort(unknown)

	return unknown
}
