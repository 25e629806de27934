// Package assigner is described in a test only.
package assigner
