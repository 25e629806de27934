package objects

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// API is the API server, as far as the metadata of objects goes. It may be used by several goroutines.
type API struct {
	meta metadata.Interface
	// writer sends what a client for metadata would, whose answer to a patch is an object that nobody wants to see.
	writer rest.Interface
}

// metadataOnly asks for the least that an API server can answer with.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// Connect returns the API server of the configuration, by the connections of c. It has no limit of requests per second of its
// own: the number of workers bounds what it does, and the API server's priority and fairness shares out the rest.
func Connect(cfg *rest.Config, c *http.Client) (*API, error) {
	unlimited := metadata.ConfigFor(cfg)
	unlimited.QPS = -1

	meta, err := metadata.NewForConfigAndClient(unlimited, c)
	if err != nil {
		return nil, fmt.Errorf("create a client for metadata: %w", err)
	}

	writer, err := rest.UnversionedRESTClientForConfigAndClient(unlimited, c)
	if err != nil {
		return nil, fmt.Errorf("create a client for patches: %w", err)
	}

	return &API{meta: meta, writer: writer}, nil
}

// patch sends a JSON merge patch. Its error is the API server's.
func (a *API) patch(ctx context.Context, id ID, body []byte) error {
	path := []string{"apis", id.GVR.Group, id.GVR.Version}
	if id.GVR.Group == "" {
		path = []string{"api", id.GVR.Version}
	}

	if id.Namespace != "" {
		path = append(path, "namespaces", id.Namespace)
	}

	answer := a.writer.Patch(types.MergePatchType).AbsPath(append(path, id.GVR.Resource, id.Name)...).
		SetHeader("Accept", metadataOnly).Body(body).Do(ctx)

	return answer.Error() //nolint:wrapcheck // Label says what was written
}
