package adopt

import (
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// ErrUnknownController is the error for a controller whose type the package does not know: controller-runtime has changed it, or the program has
// wrapped it. Such a controller is not started.
var ErrUnknownController = errors.New("the reconciler of the controller is not where it is in the versions 0.22 to 0.25 of controller-runtime")

// found is a controller of controller-runtime that was added to the manager.
type found struct {
	controller controller.Controller // nil if its requests have a type of their own
	name       string
	do         reflect.Value // the field with the reconciler
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
	name, do := field(v, "Name"), field(v, "Do")
	if !name.IsValid() || name.Kind() != reflect.String || !do.IsValid() || do.Kind() != reflect.Interface || !do.CanSet() || do.IsNil() {
		return nil, fmt.Errorf("%w: %T of %s", ErrUnknownController, r, version())
	}

	c, _ := r.(controller.Controller)

	return &found{controller: c, name: name.String(), do: do}, nil
}

func field(v reflect.Value, name string) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}

	return v.FieldByName(name)
}

// version returns the version of controller-runtime in this program.
func version() string {
	const module = "sigs.k8s.io/controller-runtime"

	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Replace != nil && m.Path == module {
				m = m.Replace
			}

			if strings.HasPrefix(m.Path, module) {
				return m.Path + " " + m.Version
			}
		}
	}

	return module + ", version unknown"
}

// reconciler returns the reconciler, or nil if its requests have a type of their own.
func (f *found) reconciler() reconcile.Reconciler {
	r, _ := reflect.TypeAssert[reconcile.Reconciler](f.do)

	return r
}

// replace sets another reconciler.
func (f *found) replace(r reconcile.Reconciler) { f.do.Set(reflect.ValueOf(r)) }
