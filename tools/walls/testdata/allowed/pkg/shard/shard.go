// Package shard promises one thing.
package shard

import (
	_ "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	_ "sigs.k8s.io/controller-runtime"
)
