package work

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// byUID are sets by the UID of an object. There is no empty set, and none for the empty UID.
type byUID[V comparable] map[types.UID]sets.Set[V]

// insert adds v to the set of uid.
func (m byUID[V]) insert(uid types.UID, v V) {
	switch set := m[uid]; {
	case uid == "":
	case set == nil:
		m[uid] = sets.New(v)
	default:
		set.Insert(v)
	}
}

// remove removes v from the set of uid, and reports whether it was the last one.
func (m byUID[V]) remove(uid types.UID, v V) (last bool) {
	set := m[uid]
	if set.Delete(v); uid == "" || set.Len() > 0 {
		return false
	}

	delete(m, uid)

	return true
}
