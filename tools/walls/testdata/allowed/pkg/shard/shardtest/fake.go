// Package shardtest promises one thing.
package shardtest

import (
	_ "testing"
)
