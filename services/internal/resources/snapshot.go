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
	groups map[string]*group
	// err is why the last look did not even see the list of groups; everything else is as before.
	err error
}

// group is what is known about an API group.
type group struct {
	// resources are the resources of the group by plural name. Each is in the version that the API server prefers among
	// the versions that serve it.
	resources map[string]Resource
	// aliases map singular and short names and kinds, in lower case, to plural names.
	aliases map[string]string
	// err is why the group was not seen completely; nil if it was.
	err error
}

func newGroup() *group {
	return &group{resources: map[string]Resource{}, aliases: map[string]string{}}
}

// after returns what is known after one more look, based on the result of discovery. What could not be seen remains as
// it was.
func (s *snapshot) after(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, err error) *snapshot {
	failed, partly := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err)
	if err != nil && !partly {
		return &snapshot{groups: s.groups, err: err}
	}

	byVersion := make(map[string]*metav1.APIResourceList, len(lists))
	for _, l := range lists {
		byVersion[l.GroupVersion] = l
	}

	next := &snapshot{groups: make(map[string]*group, len(groups))}
	for _, g := range groups {
		next.groups[g.Name] = read(g, byVersion)
	}

	// For a client without permission, or an API server that is about to start, discovery shows almost nothing, without an
	// error.
	for _, sure := range []string{"", v1alpha1.GroupVersion.Group} {
		if _, ok := next.groups[sure]; !ok {
			return &snapshot{groups: s.groups, err: fmt.Errorf("discovery does not show the API group %q, which must be there",
				sure)}
		}
	}

	if partly {
		next.complete(s, failed.Groups)
	}

	return next
}

// read returns the content of one group.
func read(g *metav1.APIGroup, lists map[string]*metav1.APIResourceList) *group {
	out := newGroup()

	versions := make([]string, 0, len(g.Versions)+1)
	versions = append(versions, g.PreferredVersion.GroupVersion)

	for _, v := range g.Versions {
		versions = append(versions, v.GroupVersion)
	}

	for _, v := range versions {
		gv, err := schema.ParseGroupVersion(v)
		if list := lists[v]; list != nil && err == nil {
			out.add(gv, list.APIResources)
		}
	}

	return out
}

// add adds the resources of a version, except those that an earlier version serves.
func (g *group) add(gv schema.GroupVersion, list []metav1.APIResource) {
	for i := range list {
		r := &list[i]
		if _, known := g.resources[r.Name]; known || strings.Contains(r.Name, "/") {
			continue
		}

		g.resources[r.Name] = Resource{
			GVR: gv.WithResource(r.Name),
			Kind: schema.GroupVersionKind{
				Group: cmp.Or(r.Group, gv.Group), Version: cmp.Or(r.Version, gv.Version), Kind: r.Kind,
			},
			Namespaced: r.Namespaced,
			lacks:      strings.Join(lacking(r), ", "),
		}

		for _, alias := range append([]string{r.SingularName, strings.ToLower(r.Kind)}, r.ShortNames...) {
			if _, taken := g.aliases[alias]; !taken && alias != "" {
				g.aliases[alias] = r.Name
			}
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
		g, ok := s.groups[gv.Group]
		if !ok {
			g = newGroup()
			s.groups[gv.Group] = g
		}

		g.err = cmp.Or(g.err, failed[gv])

		old, ok := before.groups[gv.Group]
		if !ok {
			continue
		}

		for name, r := range old.resources {
			if r.GVR.Version == gv.Version {
				g.resources[name] = r
			}
		}

		for alias, name := range old.aliases {
			if _, taken := g.aliases[alias]; !taken {
				g.aliases[alias] = name
			}
		}
	}
}

// find returns a resource. If there is none and its group was seen completely, the error is a [NotServedError].
func (s *snapshot) find(gr schema.GroupResource) (Resource, error) {
	if g := s.groups[gr.Group]; g != nil {
		if r, ok := g.resources[gr.Resource]; ok {
			return r, nil
		}
	}

	return Resource{}, s.without(gr)
}

// without returns why a resource that is not known is not found.
func (s *snapshot) without(gr schema.GroupResource) error {
	g := s.groups[gr.Group]

	switch {
	case s.err != nil:
		return fmt.Errorf("ask the API server what it serves: %w", s.err)
	case g != nil && g.err != nil:
		return fmt.Errorf("ask for the resources of API group %s: %w", gr.Group, g.err)
	default:
		return &NotServedError{GroupResource: gr, Suggestion: s.suggest(gr)}
	}
}

// ofKind returns the resource of a kind; errors are those of find.
func (s *snapshot) ofKind(gk schema.GroupKind) (Resource, error) {
	if g := s.groups[gk.Group]; g != nil {
		for _, name := range slices.Sorted(maps.Keys(g.resources)) {
			if g.resources[name].Kind.GroupKind() == gk {
				return g.resources[name], nil
			}
		}
	}

	return Resource{}, s.without(schema.GroupResource{Group: gk.Group, Resource: strings.ToLower(gk.Kind)})
}

// same reports whether two snapshots give the same answers, except for the wording of errors.
func (s *snapshot) same(o *snapshot) bool {
	return (s.err == nil) == (o.err == nil) && maps.EqualFunc(s.groups, o.groups, func(a, b *group) bool {
		return (a.err == nil) == (b.err == nil) && maps.Equal(a.resources, b.resources)
	})
}

// failing names the groups that are not known completely, sorted.
func (s *snapshot) failing() []string {
	var names []string

	for name, g := range s.groups {
		if g.err != nil {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return names
}

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
	if g := s.groups[gr.Group]; g != nil {
		if name, ok := g.aliases[gr.Resource]; ok {
			return schema.GroupResource{Group: gr.Group, Resource: name}.String()
		}
	}

	for _, other := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[other]
		if _, ok := g.resources[gr.Resource]; ok {
			return schema.GroupResource{Group: other, Resource: gr.Resource}.String()
		}
	}

	return ""
}
