// Package shard promises one thing.
package shard

import (
	_ "k8s.io/kubernetes/pkg/api"
)
