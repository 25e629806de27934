// Package v1 promises one thing.
package v1
