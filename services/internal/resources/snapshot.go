package resources

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// snapshot is what the API server serves, according to one look and those before it. It is immutable.
type snapshot struct {
	// resources are in the version that the API server prefers among those that serve them; nil before the first answer.
	resources map[schema.GroupResource]Resource
	// failed are the groups that were not seen completely, and why.
	failed map[string]error
	// err is why the last look did not even see the list of groups; everything else is as before.
	err error
}

// after returns what is known after one more look, based on the result of discovery. What could not be seen remains as
// it was.
func (s *snapshot) after(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, err error) *snapshot {
	failed, partly := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err)
	if err != nil && !partly {
		return &snapshot{resources: s.resources, failed: s.failed, err: err}
	}

	byVersion := make(map[string]*metav1.APIResourceList, len(lists))
	for _, l := range lists {
		byVersion[l.GroupVersion] = l
	}

	next := &snapshot{resources: map[schema.GroupResource]Resource{}, failed: map[string]error{}}
	seen := sets.New[string]()

	for _, g := range groups {
		seen.Insert(g.Name)

		for _, v := range append([]metav1.GroupVersionForDiscovery{g.PreferredVersion}, g.Versions...) {
			if list := byVersion[v.GroupVersion]; list != nil {
				next.add(schema.GroupVersion{Group: g.Name, Version: v.Version}, list.APIResources)
			}
		}
	}

	if partly {
		next.complete(s, failed.Groups)
	}

	// For a client without permission, or an API server that is about to start, discovery shows almost nothing, without an
	// error.
	for _, sure := range []string{"", v1alpha1.GroupVersion.Group} {
		if !seen.Has(sure) {
			return &snapshot{resources: s.resources, failed: s.failed,
				err: fmt.Errorf("discovery does not show the API group %q, which must be there", sure)}
		}
	}

	return next
}

// add adds the resources of a version, except those that an earlier version serves.
func (s *snapshot) add(gv schema.GroupVersion, list []metav1.APIResource) {
	for i := range list {
		r := &list[i]

		gr := schema.GroupResource{Group: gv.Group, Resource: r.Name}
		if _, known := s.resources[gr]; known || strings.Contains(r.Name, "/") {
			continue
		}

		s.resources[gr] = Resource{
			GVR: gv.WithResource(r.Name),
			Kind: schema.GroupVersionKind{
				Group: cmp.Or(r.Group, gv.Group), Version: cmp.Or(r.Version, gv.Version), Kind: r.Kind,
			},
			Namespaced: r.Namespaced,
			lacks:      strings.Join(lacking(r), ", "),
			aliases:    strings.Join(append([]string{r.SingularName, strings.ToLower(r.Kind)}, r.ShortNames...), ","),
		}
	}
}

// lacking returns the verbs that sharding needs and the API server does not serve for a resource, sorted. It also
// serves patch, but does not announce it, while the definition of a custom resource is being deleted: then, the labels
// have to go.
func lacking(r *metav1.APIResource) []string {
	if sets.New(r.Verbs...).HasAll("get", "list", "watch") {
		return nil
	}

	return sets.List(sets.New("get", "list", "patch", "watch").Delete(r.Verbs...))
}

// complete adds what was known before about versions that could not be seen.
func (s *snapshot) complete(before *snapshot, failed map[schema.GroupVersion]error) {
	for _, gv := range slices.SortedFunc(maps.Keys(failed), func(a, b schema.GroupVersion) int {
		return cmp.Compare(a.String(), b.String())
	}) {
		s.failed[gv.Group] = cmp.Or(s.failed[gv.Group], failed[gv])

		for gr, r := range before.resources {
			if r.GVR.GroupVersion() == gv {
				s.resources[gr] = r
			}
		}
	}
}

// find returns a resource. If there is none and its group was seen completely, the error is a [NotServedError].
func (s *snapshot) find(gr schema.GroupResource) (Resource, error) {
	if r, ok := s.resources[gr]; ok {
		return r, nil
	}

	return Resource{}, s.without(gr)
}

// without returns why a resource that is not known is not found.
func (s *snapshot) without(gr schema.GroupResource) error {
	switch {
	case s.err != nil:
		return fmt.Errorf("ask the API server what it serves: %w", s.err)
	case s.failed[gr.Group] != nil:
		return fmt.Errorf("ask for the resources of API group %s: %w", gr.Group, s.failed[gr.Group])
	default:
		return &NotServedError{GroupResource: gr, Suggestion: s.suggest(gr)}
	}
}

// ofKind returns the resource of a kind; errors are those of find.
func (s *snapshot) ofKind(gk schema.GroupKind) (Resource, error) {
	if r, found := s.first(func(r Resource) bool { return r.GVR.Group == gk.Group && r.Kind.GroupKind() == gk }); found {
		return r, nil
	}

	return Resource{}, s.without(schema.GroupResource{Group: gk.Group, Resource: strings.ToLower(gk.Kind)})
}

// first returns the first matching resource, by group and name.
func (s *snapshot) first(matches func(Resource) bool) (first Resource, found bool) {
	for _, r := range s.resources {
		if matches(r) && (!found || cmp.Or(
			cmp.Compare(r.GVR.Group, first.GVR.Group), cmp.Compare(r.GVR.Resource, first.GVR.Resource)) < 0) {
			first, found = r, true
		}
	}

	return first, found
}

// same reports whether two snapshots give the same answers, except for the wording of errors.
func (s *snapshot) same(o *snapshot) bool {
	return (s.err == nil) == (o.err == nil) && maps.Equal(s.resources, o.resources) &&
		slices.Equal(s.failing(), o.failing())
}

// failing names the groups that are not known completely, sorted.
func (s *snapshot) failing() []string { return slices.Sorted(maps.Keys(s.failed)) }

// NotServedError means that the API server does not serve a resource in any version, or not in a way that permits
// sharding. [meta.IsNoMatchError] is true for it.
type NotServedError struct {
	schema.GroupResource
	// Lacks names the verbs that sharding needs and that the API server does not serve for the resource, separated by
	// commas. It is empty if the resource is not served at all.
	Lacks string
	// Suggestion is a served resource that may have been meant; empty if there is none.
	Suggestion string
}

// Error implements error.
func (e *NotServedError) Error() string {
	if e.Lacks != "" {
		return e.String() + " cannot be sharded, because the API server serves it without the verbs " + e.Lacks
	}

	said := "the API server does not serve " + e.String()
	if e.Suggestion != "" {
		said += "; did you mean " + e.Suggestion + "?"
	}

	return said
}

// Unwrap returns the corresponding error of API machinery.
func (e *NotServedError) Unwrap() error {
	return &meta.NoResourceMatchError{PartialResource: e.WithVersion("")}
}

// suggest returns what may have been meant by a resource that is not served: a resource with this name as its singular,
// short name, or kind, or one with the same name in another group. It returns "" if there is none.
func (s *snapshot) suggest(gr schema.GroupResource) string {
	meant, found := s.first(func(r Resource) bool {
		return r.GVR.Group == gr.Group && slices.Contains(strings.Split(r.aliases, ","), gr.Resource)
	})
	if !found {
		meant, found = s.first(func(r Resource) bool { return r.GVR.Resource == gr.Resource })
	}

	if !found {
		return ""
	}

	return meant.GroupResource().String()
}
