package system

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// ShipsOfEach is the number of Ships of each Fleet. The controller counts the Ships in its cache and creates missing
// Ships with generated names. If it does not see a Ship, it creates another one.
const ShipsOfEach = 3

// Kinds are the kinds of sharded objects in deploy/example.
var Kinds = []string{check.Website, check.ConfigMap, check.Fleet, check.Ship}

// Objects selects the sharded objects in a namespace for a record; in all namespaces if it is empty.
func Objects(namespace string) []record.Objects {
	var all []record.Objects
	for _, kind := range Kinds {
		all = append(all, record.Objects{Kind: kind, Namespace: namespace})
	}

	return all
}

// Stored reads the metadata of all sharded objects from the API server, by kind, namespace, and name. There are none of
// a kind without a definition.
func Stored(ctx context.Context, c client.Client, o ...client.ListOption) map[string]metav1.PartialObjectMetadata {
	all := map[string]metav1.PartialObjectMetadata{}

	for _, kind := range Kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(record.Resource(kind).GroupVersion().WithKind(kind))

		if err := c.List(ctx, list, o...); !meta.IsNoMatchError(err) {
			must.Do(client.IgnoreNotFound(err))
		}

		for i := range list.Items {
			all[kind+" "+client.ObjectKeyFromObject(&list.Items[i]).String()] = list.Items[i]
		}
	}

	return all
}

// Labelled describes the labels of rings on stored objects.
func Labelled(stored map[string]metav1.PartialObjectMetadata) []string {
	var found []string

	for name, object := range stored {
		for label, value := range object.Labels {
			if strings.HasPrefix(label, contract.LabelShardPrefix) || strings.HasPrefix(label, contract.LabelDrainPrefix) {
				found = append(found, fmt.Sprintf("%s: %s=%s", name, label, value))
			}
		}
	}

	return found
}

// Website returns a new Website.
func Website(namespace, name string) *examplev1alpha1.Website {
	return &examplev1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       examplev1alpha1.WebsiteSpec{Title: "Website " + name, Body: "Hello."},
	}
}

// Site is the name of one of several Websites.
func Site(number int) string { return fmt.Sprintf("site-%d", number) }

// Fleet returns one of several new Fleets.
func Fleet(namespace string, number int) *examplev1alpha1.Fleet {
	return &examplev1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("fleet-%d", number)},
		Spec:       examplev1alpha1.FleetSpec{Replicas: ShipsOfEach},
	}
}

// Edit changes a Website as a user does.
func Edit(ctx context.Context, c client.Client, namespace, name string) {
	patch := fmt.Appendf(nil, `{"spec":{"body":"Edited at %s."}}`, time.Now().Format(time.RFC3339Nano))
	Asked(c.Patch(ctx, Website(namespace, name), client.RawPatch(types.MergePatchType, patch)))
}

// Asked demands that a user's request succeeds, which no fault may prevent.
func Asked(err error) {
	if err != nil {
		must.Do(fmt.Errorf("a user's request failed (I4): %w", err))
	}
}
