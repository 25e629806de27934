package proxy

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Write is one request that changes something on the API server.
type Write struct {
	// Method is the HTTP method: POST, PUT, PATCH or DELETE.
	Method string
	// Group, Resource, and Subresource identify the resource; Subresource is mostly empty.
	Group, Resource, Subresource string
	// Namespace and Name are empty if the path has none.
	Namespace, Name string
	// Body is the body of the request.
	Body []byte
	// Agent is the user agent of the request.
	Agent string
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

// Done is a write with a response of the API server.
type Done struct {
	Write
	// Status is the status of the API server, whatever the client received.
	Status int
	// ResourceVersion is the version of the written object; empty if the response has none.
	ResourceVersion string
	// Lost is true if the client did not receive the response.
	Lost bool
}

// Action is what happens to a write. The zero value forwards it.
type Action struct {
	// Status, unless zero, is the status that the client receives: instead of forwarding the write, or with Lose, after it
	// was applied.
	Status int
	// Abort closes the connection instead of forwarding the write.
	Abort bool
	// Lose forwards the write, and drops the response: the connection is closed, or the client receives Status.
	Lose bool
	// Applied, unless nil, is called after the response of the API server and before the client receives it.
	Applied func(Done)
}

// parse returns the write of a request; ok is false for reads and for requests that are not for a resource.
func parse(request *http.Request) (w Write, ok bool) {
	switch request.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return Write{}, false
	}

	w.Method, w.Agent = request.Method, request.UserAgent()
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
