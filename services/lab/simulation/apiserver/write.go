package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

func idOf(id feed.ID) ID {
	return ID{GroupResource: id.GVR.GroupResource(), Namespace: id.Namespace, Name: id.Name}
}

func (id ID) key() types.NamespacedName {
	return types.NamespacedName{Namespace: id.Namespace, Name: id.Name}
}

// patch is the content of a JSON merge patch of labels and annotations.
type patch struct {
	Metadata struct {
		UID             types.UID          `json:"uid"`
		ResourceVersion string             `json:"resourceVersion"`
		Labels          map[string]*string `json:"labels"`
		Annotations     map[string]*string `json:"annotations"`
	} `json:"metadata"`
}

// Patch applies a JSON merge patch to the metadata of an object. The error is Conflict if the patch contains another
// resource version or uid than the object has. Nothing is sent with a manager: no policy of this server refuses a
// patch.
func (c *Client) Patch(ctx context.Context, id feed.ID, body []byte, _ string) (*metav1.PartialObjectMetadata, error) {
	r := request{verb: "patch", resource: id.GVR.GroupResource(), what: id.GVR.Version + " " + id.Namespace +
		"/" + id.Name}

	var p patch

	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()

	if err := decoder.Decode(&p); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	var result *metav1.PartialObjectMetadata

	err := c.do(ctx, r, func() (err error) {
		if err := c.server.refuses(id.GVR, r); err != nil {
			return err
		}

		result, err = c.server.change(c, "patch", idOf(id), func(o *metav1.PartialObjectMetadata) error {
			if v := p.Metadata.ResourceVersion; v != "" && v != o.ResourceVersion || p.Metadata.UID != "" &&
				p.Metadata.UID != o.UID {
				return errModified
			}

			o.Labels = merged(o.Labels, p.Metadata.Labels)
			o.Annotations = merged(o.Annotations, p.Metadata.Annotations)

			return nil
		})

		return err
	})
	if err != nil {
		return nil, err
	}

	return result.DeepCopy(), nil
}

var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// merged returns the values with changes. It may change the former.
func merged(values map[string]string, changes map[string]*string) map[string]string {
	for k, v := range changes {
		if delete(values, k); v != nil {
			if values == nil {
				values = map[string]string{}
			}

			values[k] = *v
		}
	}

	return values
}

// Edit changes an object atomically, with the admission of an update.
func (c *Client) Edit(ctx context.Context, id ID, edit func(o *metav1.PartialObjectMetadata)) error {
	return c.do(ctx, request{verb: "update", resource: id.GroupResource, what: id.Namespace + "/" + id.Name},
		func() error {
			_, err := c.server.change(c, "update", id, func(o *metav1.PartialObjectMetadata) error {
				edit(o)
				return nil
			})

			return err
		})
}

// change applies edit to a copy of an object, and stores the copy if it differs. The lock is held.
func (s *Server) change(c *Client, verb string, id ID,
	edit func(o *metav1.PartialObjectMetadata) error) (*metav1.PartialObjectMetadata, error) {
	old, err := s.find(id)
	if err != nil {
		return nil, err
	}

	o := old.DeepCopy()
	if err := edit(o); err != nil {
		return nil, apierrors.NewConflict(id.GroupResource, id.Name, err)
	}

	w := Write{Client: c.name, Verb: verb, ID: id, Old: old, New: o, Stored: s.stored}
	if s.config.Admit != nil {
		s.config.Admit(w)
	}

	if equality.Semantic.DeepEqual(old, o) {
		return old, nil
	}

	s.put(w)

	return o, nil
}

// Create stores a new object. The error is AlreadyExists if an object of that name exists.
func (c *Client) Create(ctx context.Context, id ID, o *metav1.PartialObjectMetadata) error {
	s := c.server

	return c.do(ctx, request{verb: "create", resource: id.GroupResource, what: id.Namespace + "/" + id.Name},
		func() error {
			if how, ok := s.served[id.GroupResource]; !ok || how.Down || how.Namespaced != (id.Namespace != "") {
				return refused(http.StatusNotFound, request{verb: "create", resource: id.GroupResource})
			}

			if _, err := s.find(id); err == nil {
				return apierrors.NewAlreadyExists(id.GroupResource, id.Name)
			}

			o = o.DeepCopy()
			o.Namespace, o.Name = id.Namespace, id.Name

			s.nth["uid "+id.String()]++
			o.UID = types.UID(fmt.Sprintf("%s-%s-%s-%d", id.Resource, id.Namespace, id.Name, s.nth["uid "+id.String()]))

			w := Write{Client: c.name, Verb: "create", ID: id, New: o, Stored: s.stored}
			if s.config.Admit != nil {
				s.config.Admit(w)
			}

			s.put(w)

			return nil
		})
}

// Delete deletes an object immediately.
func (c *Client) Delete(ctx context.Context, id ID) error {
	s := c.server

	return c.do(ctx, request{verb: "delete", resource: id.GroupResource, what: id.Namespace + "/" + id.Name},
		func() error {
			old, err := s.find(id)
			if err != nil {
				return err
			}

			s.put(Write{Client: c.name, Verb: "delete", ID: id, Old: old})

			return nil
		})
}

// DeleteAll deletes all objects of a resource, as after the deletion of its definition.
func (s *Server) DeleteAll(client string, gr schema.GroupResource) {
	s.mu.Lock()
	defer s.mu.Unlock()

	f := filter{labels: labels.Everything(), fields: fields.Everything()}
	for _, o := range f.selected(s.store(gr).objects) {
		s.put(Write{Client: client, Verb: "delete", ID: ID{GroupResource: gr, Namespace: o.Namespace, Name: o.Name}, Old: o})
	}
}

// Objects returns the current objects of a resource. They must not be changed.
func (s *Server) Objects(visit func(id ID, o *metav1.PartialObjectMetadata)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.each(visit)
}

func (s *Server) each(visit func(id ID, o *metav1.PartialObjectMetadata)) {
	for gr, st := range s.stores {
		for key, o := range st.objects {
			visit(ID{GroupResource: gr, Namespace: key.Namespace, Name: key.Name}, o)
		}
	}
}

// stored returns the current state of an object; nil if there is none. The lock is held.
func (s *Server) stored(id ID) *metav1.PartialObjectMetadata {
	return s.store(id.GroupResource).objects[id.key()]
}

// Object returns the current state of an object without a request; nil if there is none. It must not be changed.
func (s *Server) Object(id ID) *metav1.PartialObjectMetadata {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.stored(id)
}
