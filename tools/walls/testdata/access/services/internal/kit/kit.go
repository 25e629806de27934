// Package kit promises one thing.
package kit
