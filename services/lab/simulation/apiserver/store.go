package apiserver

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// store contains the objects of one resource. Stored objects never change: a write stores a new one.
type store struct {
	objects map[types.NamespacedName]*metav1.PartialObjectMetadata
	// history contains the changes since the last compaction, oldest first.
	history []change
}

// change is one write; before is nil for a new object, and after is nil for a deleted one.
type change struct {
	version       int64
	before, after *metav1.PartialObjectMetadata
}

func (s *Server) store(gr schema.GroupResource) *store {
	st, ok := s.stores[gr]
	if !ok {
		st = &store{objects: map[types.NamespacedName]*metav1.PartialObjectMetadata{}}
		s.stores[gr] = st
	}

	return st
}

// at returns the objects at a version, which must not be older than the history.
func (st *store) at(version int64) map[types.NamespacedName]*metav1.PartialObjectMetadata {
	if len(st.history) == 0 || st.history[len(st.history)-1].version <= version {
		return st.objects
	}

	then := maps.Clone(st.objects)

	for _, c := range slices.Backward(st.history) {
		if c.version <= version {
			break
		}

		if c.before == nil {
			delete(then, keyOf(c.after))
		} else {
			then[keyOf(c.before)] = c.before
		}
	}

	return then
}

// put stores an object in a new version; nil deletes the existing one. It notifies all watches.
func (s *Server) put(w Write) {
	s.version++

	st := s.store(w.GroupResource)
	key := types.NamespacedName{Namespace: w.Namespace, Name: w.Name}

	if w.New == nil {
		delete(st.objects, key)
	} else {
		w.New.ResourceVersion = strconv.FormatInt(s.version, 10)
		st.objects[key] = w.New
	}

	c := change{version: s.version, before: w.Old, after: w.New}
	st.history = append(st.history, c)

	for watcher := range s.watchers {
		if watcher.gvr.GroupResource() == w.GroupResource {
			watcher.notice(c)
		}
	}

	if s.config.Written != nil {
		w.Others = s.each
		s.config.Written(w)
	}
}

// filter selects objects.
type filter struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// newFilter parses the selectors of a request. The error is BadRequest.
func newFilter(namespace string, opts metav1.ListOptions) (filter, error) {
	byLabel, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return filter{}, apierrors.NewBadRequest(err.Error())
	}

	byField, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return filter{}, apierrors.NewBadRequest(err.Error())
	}

	return filter{namespace, byLabel, byField}, nil
}

// matches reports whether an object is selected; false for nil.
func (f filter) matches(o *metav1.PartialObjectMetadata) bool {
	if o == nil || f.namespace != "" && f.namespace != o.Namespace || !f.labels.Matches(labels.Set(o.Labels)) {
		return false
	}

	return f.fields.Empty() || f.fields.Matches(fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace})
}

// selected returns the selected objects, sorted by namespace and name.
func (f filter) selected(
	objects map[types.NamespacedName]*metav1.PartialObjectMetadata,
) []*metav1.PartialObjectMetadata {
	var all []*metav1.PartialObjectMetadata

	for _, o := range objects {
		if f.matches(o) {
			all = append(all, o)
		}
	}

	slices.SortFunc(all, func(a, b *metav1.PartialObjectMetadata) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return all
}

func keyOf(o *metav1.PartialObjectMetadata) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}
