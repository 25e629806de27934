package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// reviews returns the bodies of n admission reviews, each of the creation of another ConfigMap of about 2 kB in the namespace, with
// all that an API server sends along: who it is, options, managed fields.
func reviews(namespace string, n int) ([][]byte, error) {
	bodies := make([][]byte, n)
	for i := range bodies {
		name := "admitted-" + strconv.Itoa(i)

		object, err := json.Marshal(configMap(namespace, name))
		if err != nil {
			return nil, fmt.Errorf("encode ConfigMap %s: %w", name, err)
		}

		gvk := metav1.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
		gvr := metav1.GroupVersionResource{Version: "v1", Resource: "configmaps"}

		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID:  types.UID(fmt.Sprintf("705ab4f5-6393-11e8-b7cc-%012d", i)),
				Kind: gvk, Resource: gvr, RequestKind: &gvk, RequestResource: &gvr,
				Name: name, Namespace: namespace, Operation: admissionv1.Create,
				UserInfo: authenticationv1.UserInfo{
					Username: "system:serviceaccount:" + namespace + ":author", UID: "b7b5a3e2-9a0f-4c61-a3f5-6dd1de6a5d2c",
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
					Extra: map[string]authenticationv1.ExtraValue{
						"authentication.kubernetes.io/credential-id": {"JTI=5a1c9d1c-3c0e-4a67-8a4b-0f6a0a7b1f57"},
						"authentication.kubernetes.io/pod-name":      {"author-7d4b9c6f5-x2x9z"},
					},
				},
				Object: runtime.RawExtension{Raw: object}, DryRun: new(false),
				Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1","fieldManager":"author"}`)},
			},
		})
		if err != nil {
			return nil, fmt.Errorf("encode an admission review: %w", err)
		}

		bodies[i] = body
	}

	return bodies, nil
}

func configMap(namespace, name string) *corev1.ConfigMap {
	const lines = 24

	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: "9e5c3a2f-8d52-4a6b-b6f0-6d3d7b0f6c11",
			CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			Annotations:       map[string]string{"example.com/made-by": "an author of ConfigMaps"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "author", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:data":{".":{},"f:settings.properties":{}},"f:metadata":{"f:annotations":{".":{},"f:example.com/made-by":{}}}}`),
			}},
		},
		Data: map[string]string{"settings.properties": string(bytes.Repeat([]byte("some.setting.of.the.program = a value\n"), lines))},
	}
}
