// Package admission promises one thing.
package admission
