// Package v1alpha1 promises one thing.
package v1alpha1

import (
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
)
