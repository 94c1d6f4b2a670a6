//! Fields on the sphere: on an icosahedral grid and on one of latitudes and longitudes.

use std::f64::consts::{PI, TAU};

use narrows_sim::rng::Rng;

type Point = [f64; 3];

/// Waves of a field; many are smooth as temperature is, with some structure at every scale.
const WAVES: usize = 60;
/// Highest wave number of a field.
const WAVE_MAX: f64 = 40.0;
/// Noise as a share of the amplitude: what weather and instruments add below the grid.
const NOISE: f64 = 2e-4;

/// A smooth function on the sphere, with noise, about as temperatures in Kelvin.
pub(super) struct Field {
    waves: Vec<(Point, f64, f64)>,
    rng: Rng,
}

impl Field {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let waves = (0..WAVES)
            .map(|_| {
                let number = WAVE_MAX.powf(rng.unit());
                let direction = normal([rng.unit() - 0.5, rng.unit() - 0.5, rng.unit() - 0.5]);
                (direction.map(|v| v * number), rng.unit() * TAU, number.powf(-1.5))
            })
            .collect();
        Self { waves, rng }
    }

    pub(super) fn at(&mut self, p: Point) -> f32 {
        let smooth: f64 = self.waves.iter().map(|(k, phase, size)| size * (dot(*k, p) + phase).sin()).sum();
        (280.0 + 10.0 * (smooth + NOISE * self.rng.normal())) as f32
    }
}

fn dot(a: Point, b: Point) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn normal(p: Point) -> Point {
    let length = dot(p, p).sqrt();
    p.map(|v| v / length)
}

/// Points of rows of latitudes, each with longitudes from 0 on.
pub(super) fn latitudes(rows: usize, columns: usize) -> Vec<Point> {
    let point = |i: usize| {
        let latitude = PI * ((i / columns) as f64 + 0.5) / rows as f64 - PI / 2.0;
        let longitude = TAU * (i % columns) as f64 / columns as f64;
        [latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()]
    };
    (0..rows * columns).map(point).collect()
}

/// An icosahedron whose triangles are cut into four `times` times, projected onto the sphere.
pub(super) struct Grid {
    /// Corners in the order in which they arise: those of coarser grids first.
    pub(super) corners: Vec<Point>,
    /// Triangles, the four of one next to each other: the order of grids that are refined.
    pub(super) cells: Vec<[usize; 3]>,
}

impl Grid {
    pub(super) fn new(times: u32) -> Self {
        let g = (1.0 + 5f64.sqrt()) / 2.0;
        let corners = [
            [-1.0, g, 0.0],
            [1.0, g, 0.0],
            [-1.0, -g, 0.0],
            [1.0, -g, 0.0],
            [0.0, -1.0, g],
            [0.0, 1.0, g],
            [0.0, -1.0, -g],
            [0.0, 1.0, -g],
            [g, 0.0, -1.0],
            [g, 0.0, 1.0],
            [-g, 0.0, -1.0],
            [-g, 0.0, 1.0],
        ];
        let mut grid = Self {
            corners: corners.map(normal).to_vec(),
            cells: vec![
                [0, 11, 5],
                [0, 5, 1],
                [0, 1, 7],
                [0, 7, 10],
                [0, 10, 11],
                [1, 5, 9],
                [5, 11, 4],
                [11, 10, 2],
                [10, 7, 6],
                [7, 1, 8],
                [3, 9, 4],
                [3, 4, 2],
                [3, 2, 6],
                [3, 6, 8],
                [3, 8, 9],
                [4, 9, 5],
                [2, 4, 11],
                [6, 2, 10],
                [8, 6, 7],
                [9, 8, 1],
            ],
        };
        for _ in 0..times {
            grid.refine();
        }
        grid
    }

    fn refine(&mut self) {
        let mut middles = std::collections::HashMap::new();
        let corners = &mut self.corners;
        let mut middle = |a: usize, b: usize| {
            *middles.entry((a.min(b), a.max(b))).or_insert_with(|| {
                let (p, q) = (corners[a], corners[b]);
                corners.push(normal([p[0] + q[0], p[1] + q[1], p[2] + q[2]]));
                corners.len() - 1
            })
        };
        let mut cells = Vec::with_capacity(4 * self.cells.len());
        for &[a, b, c] in &self.cells {
            let (ab, bc, ca) = (middle(a, b), middle(b, c), middle(c, a));
            cells.extend([[ab, bc, ca], [a, ab, ca], [b, bc, ab], [c, ca, bc]]);
        }
        self.cells = cells;
    }

    pub(super) fn centres(&self) -> Vec<Point> {
        let centre = |cell: &[usize; 3]| {
            let [a, b, c] = cell.map(|i| self.corners[i]);
            normal([a[0] + b[0] + c[0], a[1] + b[1] + c[1], a[2] + b[2] + c[2]])
        };
        self.cells.iter().map(centre).collect()
    }

    /// Cells that share an edge with each cell.
    pub(super) fn neighbours(&self) -> Vec<Vec<usize>> {
        let mut at_edge = std::collections::HashMap::<(usize, usize), Vec<usize>>::new();
        for (i, &[a, b, c]) in self.cells.iter().enumerate() {
            for (a, b) in [(a, b), (b, c), (c, a)] {
                at_edge.entry((a.min(b), a.max(b))).or_default().push(i);
            }
        }
        let mut neighbours = vec![Vec::new(); self.cells.len()];
        for cells in at_edge.values() {
            if let &[a, b] = &cells[..] {
                neighbours[a].push(b);
                neighbours[b].push(a);
            }
        }
        neighbours
    }
}

/// Indices of points along a Hilbert curve over the six faces of a cube around the sphere.
pub(super) fn along_curve(points: &[Point]) -> Vec<usize> {
    let key = |p: &Point| {
        let axis = (0..3).max_by(|&a, &b| p[a].abs().total_cmp(&p[b].abs())).unwrap_or(0);
        let face = 2 * axis + usize::from(p[axis] < 0.0);
        let on_face = |a: usize| ((p[a] / p[axis].abs() + 1.0) * f64::from(1 << 15)).min(65_535.0) as u32;
        (face, hilbert(on_face((axis + 1) % 3), on_face((axis + 2) % 3)))
    };
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_cached_key(|&i| key(&points[i]));
    order
}

/// The place of a point of 2^16 by 2^16 on Hilbert's curve.
fn hilbert(mut x: u32, mut y: u32) -> u64 {
    let mut place = 0;
    for bit in (0..16).rev() {
        let side = 1u32 << bit;
        let (right, up) = (u32::from(x & side > 0), u32::from(y & side > 0));
        place += u64::from((3 * right) ^ up) << (2 * bit);
        if up == 0 {
            if right == 1 {
                (x, y) = (65_535 - x, 65_535 - y);
            }
            (x, y) = (y, x);
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_closed_and_the_curve_visits_neighbours() {
        let grid = Grid::new(4);
        assert_eq!((grid.corners.len(), grid.cells.len()), (10 * 256 + 2, 20 * 256));
        assert!(grid.neighbours().iter().all(|n| n.len() == 3));
        let mut places: Vec<u64> = (0..64).map(|i| hilbert((i % 8) << 13, (i / 8) << 13) >> 26).collect();
        places.sort_unstable();
        assert_eq!(places, (0..64).collect::<Vec<_>>());
    }
}
