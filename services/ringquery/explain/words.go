package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// span formats a duration for people, to the second or coarser.
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

// list joins names with commas and an "and".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}

	last := len(names) - 1

	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// sentence ends a text with a period, unless the text of somebody else that it ends with already ends a sentence.
func sentence(text string) string {
	text = strings.TrimRight(text, " \n")
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "?") || strings.HasSuffix(text, "!") {
		return text
	}

	return text + "."
}

// labelText formats labels as kubectl does.
func labelText(set map[string]string) string {
	if len(set) == 0 {
		return "none"
	}

	return strings.ReplaceAll(labels.Set(set).String(), ",", ", ")
}

// labelCommand returns the command that changes a label of the object. "key-" removes the label.
func (o *Object) labelCommand(change string) string {
	scope := ""
	if o.Namespace != "" {
		scope = " -n " + o.Namespace
	}

	return fmt.Sprintf("kubectl%s label %s %s %s", scope, o.Resource.GroupResource(), o.Name, change)
}

// statusCommand returns the command that shows the status of a ring.
func statusCommand(ring string) string {
	return "kubectl describe clusterring " + ring
}

// rebalancerAdvice returns how to check the rebalancer.
func (c *ringCase) rebalancerAdvice() string {
	return "If this takes more than a few seconds, check what the rebalancer reports about the ring, and whether it runs: " + statusCommand(c.Name) +
		"; kubectl -n " + contract.SystemNamespace + " get pods -l app.kubernetes.io/name=rebalancer"
}

// unknownLabels returns the object's labels of rings that do not exist, sorted.
func unknownLabels(f *Facts) []string {
	if f.Known == nil {
		return nil
	}

	var unknown []string

	for label := range f.Object.Meta.Labels {
		ours := strings.HasPrefix(label, contract.LabelShardPrefix) || strings.HasPrefix(label, contract.LabelDrainPrefix)
		known := slices.ContainsFunc(f.Known, func(ring contract.LabelKeys) bool {
			return label == ring.Shard || label == ring.Drain
		})

		if ours && !known {
			unknown = append(unknown, label)
		}
	}

	slices.Sort(unknown)

	return unknown
}
