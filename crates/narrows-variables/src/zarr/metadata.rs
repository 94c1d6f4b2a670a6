//! Metadata of arrays, versions 2 and 3: JSON to a variable.

use data_encoding::BASE64;
use half::f16;
use narrows::{Error, Result};
use narrows_array::{ByteOrder, Dtype, npy};
use serde_json::Value;

use crate::filter::Filter;
use crate::hdf5::integer;
use crate::number::values;
use crate::place::{Chunking, KeyForm, Shard};
use crate::variable::{Element, MISSING_MAX, MISSING_NAMES, Place, RANK_MAX, Variable};

fn bad(what: &str) -> Error {
    Error::corrupt(format!("the metadata of the array lack {what}, or it has no sense"))
}

fn shape(value: Option<&Value>, what: &str) -> Result<Vec<u64>> {
    let list = value.and_then(Value::as_array).filter(|list| list.len() <= RANK_MAX).ok_or_else(|| bad(what))?;
    list.iter().map(|n| n.as_u64().ok_or_else(|| bad(what))).collect()
}

/// The shape of chunks: as many axes as the array, none of them 0.
fn chunk_shape(value: Option<&Value>, rank: usize) -> Result<Vec<u64>> {
    let shape = shape(value, "the shape of its chunks")?;
    if shape.len() != rank || shape.contains(&0) {
        return Err(bad("the shape of its chunks"));
    }
    Ok(shape)
}

/// An array of version 2, `.zarray`.
pub(super) fn version_2(path: &str, json: &Value) -> Result<Variable> {
    let mut element = element_2(json.get("dtype").ok_or_else(|| bad("dtype"))?)?;
    let shape = shape(json.get("shape"), "shape")?;
    let rank = shape.len();
    let mut filters = Vec::new();
    let listed = json.get("filters").and_then(Value::as_array);
    for codec in listed.into_iter().flatten().chain(json.get("compressor").filter(|c| !c.is_null())) {
        let name = codec.get("id").and_then(Value::as_str).ok_or_else(|| bad("the id of a filter"))?;
        filters.push(Filter::of_zarr(name, codec, element.bytes));
    }
    // Text and objects of any length are what their filter makes of them.
    if filters.iter().any(|f| f.name.starts_with("vlen-") || f.name.starts_with("json") || f.name == "pickle") {
        element.dtype = None;
    }
    let mut variable = Variable::new(path.to_owned(), element, shape);
    variable.filters = filters;
    variable.fill = fill(&variable.element, json.get("fill_value")).unwrap_or_default();
    // It is what xarray takes for missing; 0 is what others have without a thought.
    variable.missing = values(&variable, &variable.fill).into_iter().filter(|v| *v != 0.0).collect();
    let chunk = chunk_shape(json.get("chunks"), rank)?;
    if json.get("order").and_then(Value::as_str) == Some("F") {
        variable.axes.reverse();
    }
    let separator = match json.get("dimension_separator").and_then(Value::as_str) {
        None | Some(".") => '.',
        Some("/") => '/',
        Some(_) => return Err(bad("its separator")),
    };
    variable.chunk = Some(chunk.clone());
    variable.place = Place::Zarr(Chunking::new(path, KeyForm::Two, separator, chunk));
    Ok(variable)
}

/// NumPy's name of a type, such as `<f4`, or a list of fields.
fn element_2(dtype: &Value) -> Result<Element> {
    let Some(name) = dtype.as_str() else {
        let bytes = dtype.as_array().and_then(|fields| fields_bytes(fields));
        let bytes = bytes.ok_or_else(|| bad("dtype"))?;
        return Ok(Element { name: format!("record of {bytes}"), ..record(bytes) });
    };
    let (order, code) = name.split_at_checked(1).ok_or_else(|| bad("dtype"))?;
    let is_big = match order {
        "<" | "|" | "=" => false,
        ">" => true,
        _ => return Err(bad("dtype")),
    };
    let order = if is_big { ByteOrder::Big } else { ByteOrder::Little };
    let (kind, len) = code.split_at_checked(1).ok_or_else(|| bad("dtype"))?;
    let number = || len.parse::<usize>().ok().filter(|n| *n > 0 && *n < 1 << 30);
    Ok(match kind {
        "O" => Element::other("object", 8),
        "M" | "m" => {
            Element { name: if kind == "M" { "time" } else { "duration" }.into(), ..Element::of(Dtype::I64, order) }
        }
        "S" => Element::other(format!("string of {len}"), number().ok_or_else(|| bad("dtype"))?),
        "U" => {
            let bytes = 4 * number().ok_or_else(|| bad("dtype"))?;
            Element { order, ..Element::other(format!("string of {len}"), bytes) }
        }
        "V" => record(number().ok_or_else(|| bad("dtype"))?),
        _ => {
            Element::of(npy::dtype(code).ok_or_else(|| Error::unsupported(format!("elements of type {name}")))?, order)
        }
    })
}

/// Bytes of all fields of a record.
fn fields_bytes(fields: &[Value]) -> Option<usize> {
    fields.iter().try_fold(0usize, |sum, field| {
        let field = field.as_array()?;
        let one = match field.get(1)? {
            Value::Array(inner) => fields_bytes(inner)?,
            other => element_2(other).ok()?.bytes,
        };
        let count = match field.get(2) {
            Some(shape) => shape.as_array()?.iter().try_fold(1usize, |n, d| n.checked_mul(d.as_u64()? as usize))?,
            None => 1,
        };
        sum.checked_add(one.checked_mul(count)?)
    })
}

fn record(bytes: usize) -> Element {
    match u16::try_from(bytes) {
        Ok(width @ 1..) => Element::of(Dtype::Record(width), ByteOrder::Little),
        _ => Element::other(format!("record of {bytes}"), bytes.max(1)),
    }
}

/// An array of version 3, `zarr.json`.
pub(super) fn version_3(path: &str, json: &Value) -> Result<Variable> {
    let element = element_3(json.get("data_type").ok_or_else(|| bad("data_type"))?)?;
    let shape = shape(json.get("shape"), "shape")?;
    let rank = shape.len();
    let grid = json.get("chunk_grid").ok_or_else(|| bad("chunk_grid"))?;
    if named(grid)?.0 != "regular" {
        return Err(Error::unsupported(format!("chunks on a grid of the kind {}", named(grid)?.0)));
    }
    let outer = chunk_shape(named(grid)?.1.get("chunk_shape"), rank)?;
    let keys = json.get("chunk_key_encoding").ok_or_else(|| bad("chunk_key_encoding"))?;
    let (name, configuration) = named(keys)?;
    let separator = configuration.get("separator").and_then(Value::as_str).and_then(|s| s.chars().next());
    let (form, separator) = match name {
        "default" => (KeyForm::Three, separator.unwrap_or('/')),
        "v2" => (KeyForm::Two, separator.unwrap_or('.')),
        _ => return Err(Error::unsupported(format!("keys of the kind {name}"))),
    };
    let mut variable = Variable::new(path.to_owned(), element, shape);
    let mut chunking = Chunking::new(path, form, separator, outer.clone());
    variable.chunk = Some(outer);
    let list = json.get("codecs").and_then(Value::as_array).ok_or_else(|| bad("codecs"))?;
    codecs(list, &mut variable, Some(&mut chunking))?;
    variable.fill = fill(&variable.element, json.get("fill_value")).unwrap_or_default();
    if let Some(attributes) = json.get("attributes") {
        add_missing(attributes, &mut variable);
    }
    variable.place = Place::Zarr(chunking);
    Ok(variable)
}

/// Adds the values that attributes name: numbers, lists of them, or the 8 bytes of an f64 in base64, as xarray
/// writes floats in version 3.
pub(super) fn add_missing(attributes: &Value, variable: &mut Variable) {
    let one = |value: &Value| match value {
        Value::String(text) => match (text.as_str(), BASE64.decode(text.as_bytes()).ok()) {
            ("NaN", _) => Some(f64::NAN),
            (_, Some(bytes)) => bytes.try_into().ok().map(f64::from_le_bytes),
            _ => None,
        },
        number => number.as_f64(),
    };
    for value in MISSING_NAMES.iter().filter_map(|name| attributes.get(name)) {
        let each = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        variable.missing.extend(each.iter().take(MISSING_MAX).filter_map(one));
    }
}

/// Name and configuration of an extension point.
fn named(value: &Value) -> Result<(&str, &Value)> {
    if let Some(name) = value.as_str() {
        return Ok((name, &Value::Null));
    }
    let name = value.get("name").and_then(Value::as_str).ok_or_else(|| bad("a name"))?;
    Ok((name, value.get("configuration").unwrap_or(&Value::Null)))
}

/// What a list of codecs says of the stored chunks. `chunking` is that of the array, `None` within a shard.
fn codecs(list: &[Value], variable: &mut Variable, chunking: Option<&mut Chunking>) -> Result<()> {
    let mut chunking = chunking;
    let mut is_sharded = false;
    for codec in list {
        let (name, configuration) = named(codec)?;
        if is_sharded {
            return Err(Error::unsupported(format!("shards that {name} compresses as a whole")));
        }
        match name {
            "bytes" | "endian" => {
                let is_big = configuration.get("endian").and_then(Value::as_str) == Some("big");
                if let (true, Some(dtype)) = (is_big, variable.element.dtype) {
                    variable.element = Element::of(dtype, ByteOrder::Big);
                }
            }
            "transpose" => {
                let axes = transposition(configuration.get("order"), variable.shape.len())?;
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..variable.shape.len()) {
                    return Err(bad("order of transpose"));
                }
                variable.axes = axes.iter().map(|i| variable.axes[*i]).collect();
                variable.turned.clone_from(&variable.axes);
            }
            "sharding_indexed" => {
                let Some(chunking) = chunking.take() else {
                    return Err(Error::unsupported("shards within shards"));
                };
                if !variable.axes.is_sorted() {
                    return Err(Error::unsupported("shards of transposed arrays"));
                }
                let inner = chunk_shape(configuration.get("chunk_shape"), variable.shape.len())?;
                if chunking.outer.iter().zip(&inner).any(|(o, i)| o % i != 0) {
                    return Err(bad("the shape of its shards"));
                }
                let index = configuration.get("index_codecs").and_then(Value::as_array);
                let index = index.map(|list| list.iter().map(named).collect::<Result<Vec<_>>>()).transpose()?;
                let names: Vec<&str> = index.iter().flatten().map(|c| c.0).collect();
                let has_sum = match names.as_slice() {
                    [] | ["bytes", "crc32c"] => true,
                    ["bytes"] => false,
                    _ => return Err(Error::unsupported("shards whose index is compressed")),
                };
                let at_start = configuration.get("index_location").and_then(Value::as_str) == Some("start");
                chunking.shard = Some(Shard { inner: inner.clone(), has_sum, at_start });
                variable.chunk = Some(inner);
                let list = configuration.get("codecs").and_then(Value::as_array).ok_or_else(|| bad("codecs"))?;
                codecs(list, variable, None)?;
                is_sharded = true;
            }
            _ => {
                if name.starts_with("vlen-") {
                    variable.element.dtype = None;
                }
                variable.filters.push(Filter::of_zarr(name, configuration, variable.element.bytes));
            }
        }
    }
    Ok(())
}

/// Axes by a transposition; drafts of version 3 named two of them.
fn transposition(order: Option<&Value>, rank: usize) -> Result<Vec<usize>> {
    match order.and_then(Value::as_str) {
        Some("C") => Ok((0..rank).collect()),
        Some("F") => Ok((0..rank).rev().collect()),
        _ => Ok(shape(order, "order of transpose")?.iter().map(|n| *n as usize).collect()),
    }
}

fn element_3(data_type: &Value) -> Result<Element> {
    let (name, configuration) = named(data_type)?;
    let little = |dtype| Element::of(dtype, ByteOrder::Little);
    let bits = |prefix: &str| name.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok()).filter(|n| n % 8 == 0);
    let dtype = match name {
        "bool" => Some(Dtype::Bool),
        "float16" => Some(Dtype::F16),
        "float32" => Some(Dtype::F32),
        "float64" => Some(Dtype::F64),
        "complex64" => Some(Dtype::C64),
        "complex128" => Some(Dtype::C128),
        _ => match (bits("int"), bits("uint")) {
            (Some(bits), _) => integer(bits / 8, true),
            (_, Some(bits)) => integer(bits / 8, false),
            _ => None,
        },
    };
    let length = || configuration.get("length_bytes").and_then(Value::as_u64).filter(|n| (1..1 << 30).contains(n));
    Ok(match (name, dtype) {
        (_, Some(dtype)) => little(dtype),
        ("string" | "variable_length_bytes", _) => Element::other(name, 1),
        ("numpy.datetime64", _) => Element { name: "time".into(), ..little(Dtype::I64) },
        ("numpy.timedelta64", _) => Element { name: "duration".into(), ..little(Dtype::I64) },
        _ => match (bits("r"), length()) {
            (Some(bits), _) if bits > 0 => record(bits / 8),
            (_, Some(bytes)) => Element::other(name, bytes as usize),
            _ => Element::other(name, 1),
        },
    })
}

/// Bytes of a fill value; `None` stands for zeros, and for what cannot be known.
fn fill(element: &Element, value: Option<&Value>) -> Option<Vec<u8>> {
    let dtype = element.dtype?;
    let value = value.filter(|v| !v.is_null())?;
    let mut out = match dtype {
        Dtype::Record(_) => return None,
        Dtype::Bool => vec![u8::from(value.as_bool()?)],
        Dtype::C64 | Dtype::C128 => {
            let half = if dtype == Dtype::C64 { Dtype::F32 } else { Dtype::F64 };
            let parts = value.as_array().filter(|parts| parts.len() == 2)?;
            let part = |i: usize| float(half, &parts[i]);
            [part(0)?, part(1)?].concat()
        }
        _ if dtype.is_float() => float(dtype, value)?,
        _ => {
            let wide = value.as_i64().map_or_else(|| value.as_u64(), |v| Some(v as u64))?;
            wide.to_le_bytes()[..dtype.bytes()].to_vec()
        }
    };
    if element.order == ByteOrder::Big {
        let words = if matches!(dtype, Dtype::C64 | Dtype::C128) { 2 } else { 1 };
        let width = out.len() / words;
        out.chunks_mut(width).for_each(<[u8]>::reverse);
    }
    Some(out)
}

fn float(dtype: Dtype, value: &Value) -> Option<Vec<u8>> {
    let number = match value {
        Value::String(text) => match text.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            hex => {
                let bits = u64::from_str_radix(hex.strip_prefix("0x")?, 16).ok()?;
                return Some(bits.to_le_bytes()[..dtype.bytes()].to_vec());
            }
        },
        other => other.as_f64()?,
    };
    Some(match dtype {
        Dtype::F16 => f16::from_f64(number).to_le_bytes().to_vec(),
        Dtype::F32 => (number as f32).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    })
}
