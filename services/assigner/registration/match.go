package registration

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Names of the match conditions. API servers show them in errors and metrics.
const (
	conditionRebalancer = "not-written-by-the-rebalancer"
	conditionController = "controlled-by-the-ring"
	conditionHandover   = "not-given-up"
	conditionLabels     = "labels-change"
	conditionSelected   = "selected-"
	conditionDryRun     = "dry-run"
	conditionRing       = "of-the-ring"
)

// matchConditions returns the CEL expressions that all must hold for the API server to call the webhook. They are evaluated
// within the API server, so an object that is none of our business costs no call.
func matchConditions(ring *v1alpha1.ClusterRing, set *resources.Set, rebalancer string) []admissionregistrationv1.MatchCondition {
	out := []admissionregistrationv1.MatchCondition{{Name: conditionRebalancer, Expression: notByRebalancer(rebalancer)}}

	if len(set.Controlled()) > 0 {
		out = append(out, admissionregistrationv1.MatchCondition{
			Name:       conditionController,
			Expression: controlledByRing(set),
		})
	}

	if owners := isOneOf(set.Main(), func(r resources.Resource) bool { return r.Controls }); owners != "" {
		out = append(out, admissionregistrationv1.MatchCondition{
			Name:       conditionHandover,
			Expression: notGivenUp(ring.LabelKeys(), owners),
		})
	}

	for i, expression := range selected(ring) {
		out = append(out, admissionregistrationv1.MatchCondition{Name: conditionSelected + strconv.Itoa(i), Expression: expression})
	}

	return out
}

// notByRebalancer holds for the writes of all others. The API server evaluates each condition, whatever the others say, so what
// costs much follows it in the same one.
func notByRebalancer(rebalancer string) string {
	return "request.userInfo.username != " + strconv.Quote(rebalancer)
}

// selected returns expressions that all hold for main objects that the ring selects, for all controlled objects, and for writes that take the shard label
// from an object: it must come back, also if the same write takes the object out of the selection. The object selector of the webhook could not except
// these. The policy ring-webhooks in deploy/base/guard admits exactly these expressions.
func selected(ring *v1alpha1.ClusterRing) []string {
	selector := ring.Spec.ObjectSelector
	if selector == nil {
		return nil
	}

	mains := make([]string, len(ring.Spec.Resources))
	for i, r := range ring.Spec.Resources {
		mains[i] = r.Group + "/" + r.Resource
	}

	others := fmt.Sprintf(" || !(%s) || request.operation == 'UPDATE' && %q in oldObject.metadata.?labels.orValue({})",
		resourceIn(mains), ring.LabelKeys().Shard)

	has := func(label string) string { return fmt.Sprintf("%q in object.metadata.?labels.orValue({})", label) }
	in := func(label string, values []string) string {
		return fmt.Sprintf("%s && object.metadata.labels[%q] in %s", has(label), label, list(values))
	}

	var all []string

	for _, label := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		all = append(all, "("+in(label, []string{selector.MatchLabels[label]})+")"+others)
	}

	for _, e := range selector.MatchExpressions {
		expression := has(e.Key)
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			expression = in(e.Key, e.Values)
		}

		expression = "(" + expression + ")"
		if e.Operator == metav1.LabelSelectorOpNotIn || e.Operator == metav1.LabelSelectorOpDoesNotExist {
			expression = "!" + expression
		}

		all = append(all, expression+others)
	}

	return all
}

// notGivenUp holds for all writes but that by which a shard gives up an object that others may follow: they go first, and the rebalancer
// assigns it. That is one call less in each such move.
func notGivenUp(keys contract.LabelKeys, owners string) string {
	return fmt.Sprintf("request.operation != 'UPDATE' || !(%s) || "+
		"!has(oldObject.metadata.labels) || !(%q in oldObject.metadata.labels)", owners, keys.Drain)
}

// labelsChange holds for updates that change the shard label of an object, and for those that keep it and change a label which is a key in the ring.
// The policy ring-webhooks in deploy/base/guard admits exactly this expression, after notByRebalancer.
//
// It does not hold if the update has the form in which a shard releases an object, or if the permission relabel was granted to its author.
// Tools for GitOps and backups usually have every permission there is. They do not know what they ask for, so that does not count.
func labelsChange(ring *v1alpha1.ClusterRing) string {
	keys, keyed := ring.LabelKeys(), "false"

	var all []string

	for _, r := range ring.Spec.Resources {
		if label := key.RuleOf(r.Key).Label; label != "" {
			all = append(all, labelOf("oldObject", label)+" != "+labelOf("object", label))
		}
	}

	if len(all) > 0 {
		keyed = "(" + strings.Join(all, " || ") + ")"
	}

	was, is, next := labelOf("oldObject", keys.Shard), labelOf("object", keys.Shard), labelOf("oldObject", keys.Drain)
	may := fmt.Sprintf("authorizer.group(\"sharding.timebertt.dev\").resource(\"clusterrings\").name(%q)", ring.Name)

	return fmt.Sprintf("%[1]s == %[2]s ? %[3]s : %[1]s.orValue(\"\") != \"\" && !(%[4]s.hasValue() && (!%[2]s.hasValue() || %[4]s == %[2]s)) && "+
		"!(%[5]s.check(\"relabel\").allowed() && !%[5]s.check(\"*\").allowed())", was, is, keyed, next, may)
}

// labelOf returns a CEL expression for the value of a label, an optional one.
func labelOf(object, label string) string {
	return fmt.Sprintf("%s.metadata.?labels[?%q]", object, label)
}

// isOneOf returns a CEL expression that holds for requests to resources, "" if there are none.
func isOneOf(all []resources.Resource, which func(resources.Resource) bool) string {
	var names []string

	for _, r := range all {
		if which(r) {
			names = append(names, r.GVR.Group+"/"+r.GVR.Resource)
		}
	}

	if len(names) == 0 {
		return ""
	}

	return resourceIn(names)
}

// resourceIn returns a CEL expression that holds for requests to resources with these names, as group/resource.
func resourceIn(names []string) string {
	return "request.resource.group + '/' + request.resource.resource in " + list(names)
}

// list returns a list of strings in CEL.
func list(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}

	return "[" + strings.Join(quoted, ", ") + "]"
}

// controlledByRing holds for main objects, and for controlled objects with a controller of a kind whose objects others may follow. It compares
// what [resources.Set.ControllerOf] compares: group and kind of the owner reference, not its version.
func controlledByRing(set *resources.Set) string {
	controlled := isOneOf(set.Controlled(), func(resources.Resource) bool { return true })

	// The API version of an owner reference is "version" in the core group and "group/version" in all others.
	owners := make([]string, 0, len(set.Main()))
	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		if !r.Controls {
			continue
		}

		group := "!o.apiVersion.contains('/')"
		if r.Kind.Group != "" {
			group = fmt.Sprintf("o.apiVersion.startsWith(%q)", r.Kind.Group+"/")
		}

		owners = append(owners, fmt.Sprintf("o.kind == %q && %s", r.Kind.Kind, group))
	}

	if len(owners) == 0 {
		owners = []string{"false"} // no main resource is served: no object can be controlled by one
	}

	return fmt.Sprintf("!(%s) || "+
		"has(object.metadata.ownerReferences) && "+
		"object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && (%s))",
		controlled, strings.Join(owners, " || "))
}
