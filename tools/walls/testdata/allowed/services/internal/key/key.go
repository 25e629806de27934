// Package key promises one thing.
package key

import (
	_ "github.com/cespare/xxhash/v2"
	_ "k8s.io/apimachinery/pkg/runtime/schema"
)
