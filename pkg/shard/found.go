package shard

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// defaultSyncTimeout is for how long a controller waits for its caches by default, as in controller-runtime.
const defaultSyncTimeout = 2 * time.Minute

// ErrUnknownController is the error for a controller whose type the package does not know: controller-runtime has changed it, or the program has
// wrapped it. Such a controller is not started.
var ErrUnknownController = errors.New("the reconciler of the controller is not where it is in the versions 0.24 and 0.25 of controller-runtime")

// found is a controller of controller-runtime that was added to the manager.
type found struct {
	name   string
	fields reflect.Value // of the controller
	// sharded is true if it works on the objects of this shard.
	sharded bool
}

// library is where controller-runtime has its controllers.
const library = "sigs.k8s.io/controller-runtime/pkg/internal/controller"

// find returns the controller that a runnable is, or that it embeds; nil if there is none. All versions keep the name and the reconciler in exported fields
// of a type that is not exported to other modules.
func find(r manager.Runnable) (*found, error) {
	v := reflect.Indirect(reflect.ValueOf(r))
	if v.IsValid() && v.Type().PkgPath() == library {
		return open(r, v)
	}

	_, like := r.(controller.Controller)
	if like && v.Kind() == reflect.Struct {
		// As cert-controller does, which changes whether its controller needs leader election.
		for i := range v.NumField() {
			if embedded := v.Type().Field(i); embedded.Anonymous && embedded.IsExported() {
				if inner, ok := reflect.TypeAssert[manager.Runnable](v.Field(i)); ok {
					return find(inner)
				}
			}
		}
	}

	if like {
		return nil, fmt.Errorf("%w: %T contains a controller, but does not embed it: add the controller itself", ErrUnknownController, r)
	}

	return nil, nil //nolint:nilnil // no controller
}

// open returns a controller of controller-runtime.
func open(r manager.Runnable, v reflect.Value) (*found, error) {
	f := &found{fields: v}

	name, do := f.field("Name"), f.field("Do")
	if !name.IsValid() || name.Kind() != reflect.String || !do.IsValid() || do.Kind() != reflect.Interface || !do.CanSet() || do.IsNil() {
		return nil, fmt.Errorf("%w: %T", ErrUnknownController, r)
	}

	f.name = name.String()

	return f, nil
}

func (f *found) field(name string) reflect.Value {
	if f.fields.Kind() != reflect.Struct {
		return reflect.Value{}
	}

	return f.fields.FieldByName(name)
}

// kind returns the For kind of the controller, as far as the builder has told it.
func (f *found) kind() schema.GroupKind {
	construct := f.field("LogConstructor")
	if !construct.IsValid() || construct.Kind() != reflect.Func || construct.IsNil() || construct.Type().NumIn() != 1 {
		return schema.GroupKind{}
	}

	l, _ := reflect.TypeAssert[logr.Logger](construct.Call([]reflect.Value{reflect.Zero(construct.Type().In(0))})[0])

	return kindIn(l)
}

// patient makes the controller wait for its caches as long as the shard waits for its name. It returns for how long the controller would have waited.
func (f *found) patient() time.Duration {
	limit := defaultSyncTimeout

	if v := f.field("CacheSyncTimeout"); v.IsValid() && v.CanSet() && v.Type() == reflect.TypeFor[time.Duration]() {
		if given := time.Duration(v.Int()); given > 0 {
			limit = given
		}

		v.SetInt(math.MaxInt64 / 2) // for ever
	}

	return limit
}

// watches returns objects of the kinds that the controller watches so far in the cache of the manager.
func (f *found) watches() (objects []client.Object) {
	sources := f.field("startWatches")
	if !sources.IsValid() || sources.Kind() != reflect.Slice {
		return nil
	}

	for i := range sources.Len() {
		s := reflect.Indirect(sources.Index(i).Elem())
		if !s.IsValid() || !strings.HasPrefix(s.Type().Name(), "Kind[") {
			continue
		}

		in, obj := s.FieldByName("Cache"), s.FieldByName("Type")
		if !in.IsValid() || in.Kind() != reflect.Interface || !in.Elem().IsValid() || in.Elem().Type() != reflect.TypeFor[*ringCache]() || !obj.IsValid() {
			continue
		}

		if obj.Kind() == reflect.Interface {
			obj = obj.Elem()
		}

		if obj.Kind() == reflect.Pointer && !obj.IsNil() {
			if is, ok := reflect.TypeAssert[client.Object](reflect.NewAt(obj.Type().Elem(), obj.UnsafePointer())); ok {
				objects = append(objects, is)
			}
		}
	}

	return objects
}

// do is the reconciler of the controller.
func (f *found) do() any { return f.field("Do").Interface() }

// replace sets another reconciler of the same type of requests.
func (f *found) replace(r any) { f.field("Do").Set(reflect.ValueOf(r)) }
