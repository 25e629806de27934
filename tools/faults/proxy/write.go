package proxy

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Write is one request that changes something on the API server.
type Write struct {
	// Number counts the writes of one proxy, from 1.
	Number int
	// Client is the name of the proxy that it came through.
	Client string
	// Method is the HTTP method: POST, PUT, PATCH or DELETE.
	Method string
	// Group, Resource and Subresource say what is written; Subresource is mostly empty.
	Group, Resource, Subresource string
	// Namespace and Name are empty where the path has none.
	Namespace, Name string
	// Body is what was sent.
	Body []byte
}

// String returns method, resource and name.
func (w Write) String() string {
	target := w.Resource
	if w.Subresource != "" {
		target += "/" + w.Subresource
	}
	return strings.TrimSpace(w.Method + " " + target + " " + strings.Trim(w.Namespace+"/"+w.Name, "/"))
}

// Labels returns the labels that a body in JSON sets (a string) or removes (nil). It is empty for other bodies.
func (w Write) Labels() map[string]*string {
	var body struct {
		Metadata struct {
			Labels map[string]*string `json:"labels"`
		} `json:"metadata"`
	}
	if json.Unmarshal(w.Body, &body) != nil {
		return nil
	}
	return body.Metadata.Labels
}

// Done is a write that the API server has answered.
type Done struct {
	Write
	// Status is the API server's, whatever the client was told.
	Status int
	// ResourceVersion is that of the object as written; empty where the answer has none.
	ResourceVersion string
	// Lost says that the client did not get the answer.
	Lost bool
}

// Action is what becomes of a write. The zero value forwards it.
type Action struct {
	// Status, unless zero, is what the client is told: instead of forwarding the write, or with Lose, after it was applied.
	Status int
	// Abort closes the connection instead of forwarding the write.
	Abort bool
	// Lose forwards the write, and keeps the API server's answer from the client: the connection is closed, or Status told.
	Lose bool
	// Applied, unless nil, is called when the API server has answered and before the client gets to know.
	Applied func(Done)
}

// parse returns the write that a request is; ok is false for reads and for what is no request for a resource.
func parse(request *http.Request) (w Write, ok bool) {
	switch request.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return Write{}, false
	}
	w.Method = request.Method
	// /api/<version>/... and /apis/<group>/<version>/...
	path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	switch {
	case len(path) > 2 && path[0] == "api":
		path = path[2:]
	case len(path) > 3 && path[0] == "apis":
		w.Group, path = path[1], path[3:]
	default:
		return Write{}, false
	}
	if len(path) > 2 && path[0] == "namespaces" {
		w.Namespace, path = path[1], path[2:]
	}
	w.Resource = path[0]
	if len(path) > 1 {
		w.Name = path[1]
	}
	if len(path) > 2 {
		w.Subresource = path[2]
	}
	return w, true
}
